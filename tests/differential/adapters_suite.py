# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters beside PEFT: what PEFT saves, loaded and merged here, and what
is trained here, loaded by PEFT. Without PEFT, tests/tasks/lora_test.cpp compares
with adapters that PEFT has saved."""
import json
import warnings

from suite import LiveSuite, run_program, write_json

# Sums in another order; and weights of bfloat16 are not used.
MOST = 2e-5
LAYERS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen2": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "qwen3": ["q_proj", "k_proj", "o_proj", "up_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "opt": ["q_proj", "v_proj", "out_proj", "fc1", "fc2"],
    "glm4": ["q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
    "t5": ["q", "k", "v", "o", "wi", "wo"],
    "bert": ["query", "key", "value", "dense"],
    "roberta": ["query", "value"],
}
EMBEDDINGS = {"gpt2": "wte", "t5": "shared"}
NORMS = {"llama": "norm", "qwen2": "norm", "qwen3": "norm", "gpt2": "ln_f",
         "opt": "final_layer_norm", "glm4": "norm", "t5": "final_layer_norm"}
TASKS = {"bert": "SEQ_CLS", "roberta": "SEQ_CLS", "t5": "SEQ_2_SEQ_LM"}
# Refused by name, as the documentation says; never ignored.
REFUSED = {"lora_bias": True, "trainable_token_indices": [5],
           "layer_replication": [[0, 2]], "use_qalora": True,
           "target_parameters": ["q_proj.weight"]}


class Adapters(LiveSuite):
    name = "adapters"
    needs = ("peft", "transformers", "torch", "safetensors")

    def cases(self, random, count):
        names = list(LAYERS)
        return [self.case(random, names[i % len(names)], i) for i in range(count)]

    def case(self, random, name, i):
        from tiny_models import DECODERS
        tied = name in ("gpt2", "t5", "opt") and random.random() < .8 \
            or random.random() < .4
        chosen = random.sample(LAYERS[name], random.randrange(1, 3))
        how = random.random()
        config = {"r": random.choice([1, 2, 3]), "lora_alpha": random.choice([1, 4, 7]),
                  "target_modules": "all-linear" if how < .2 else
                  rf".*\.({'|'.join(chosen)})" if how < .35 else chosen}
        optional = {
            "use_rslora": lambda: True,
            "use_dora": lambda: True,
            "bias": lambda: random.choice(["all", "lora_only"]),
            "rank_pattern": lambda: {chosen[0]: 4},
            "alpha_pattern": lambda: {chosen[0]: 9},
            "exclude_modules": lambda: [random.choice(LAYERS[name])],
            "modules_to_save": lambda: random.choice([
                [EMBEDDINGS.get(name, "embed_tokens")], ["lm_head"],
                [EMBEDDINGS.get(name, "embed_tokens"), "lm_head"],
                [NORMS.get(name, "classifier")]]),
        }
        for key, make in optional.items():
            if random.random() < .25:
                config[key] = make()
        if config["target_modules"] == chosen and random.random() < .25:
            config["layers_to_transform"] = random.choice([1, [0]])
        if "use_dora" not in config and random.random() < .2:
            config["init_lora_weights"] = "pissa"
        if "modules_to_save" in config and random.random() < .3:
            config["ensure_weight_tying"] = True
        if name in TASKS:
            config["task_type"] = TASKS[name]
            if name != "t5":
                config.pop("modules_to_save", None)
        elif random.random() < .7:
            config["task_type"] = "CAUSAL_LM"
        if random.random() < .1:
            key = random.choice(sorted(REFUSED))
            config[key] = REFUSED[key]
        trains = name in DECODERS and i % 2 == 1
        return {"model": name, "tied": tied, "config": config, "seed": i,
                "trains": trains}

    def differences(self, case, folder, program):
        import tiny_models
        warnings.simplefilter("ignore")
        base = folder / "base"
        model = tiny_models.make(case["model"], case["tied"], case["seed"])
        model.save_pretrained(base)
        batch = tiny_models.inputs_of(case["model"], case["seed"])
        write_json(folder / "inputs.json",
                   {key: value.tolist() for key, value in batch.items()})
        if case["trains"]:
            return trained_here(case, base, batch, folder, program)
        return saved_by_peft(case, base, batch, folder, program)


def logits_here(model, folder, program):
    from safetensors.torch import load_file
    output, error = run_program(
        program, "logits", "--model", model, "--input", folder / "inputs.json",
        "--output", folder / "outputs.safetensors")
    if output is None:
        return None, error
    return load_file(folder / "outputs.safetensors")["logits"], ""


def logits_of(model, batch):
    import torch
    with torch.no_grad():
        return model.eval()(**batch).logits


def compared(title, ours, theirs):
    from tiny_models import largest_difference
    found = largest_difference(ours, theirs)
    return [] if found <= MOST else [f"{title}: logits differ by {found:.2g}"]


def load_base(base):
    import transformers
    kind = json.loads((base / "config.json").read_text())["architectures"][0]
    return getattr(transformers, kind).from_pretrained(base).eval()


def adapted_by_peft(case, base):
    """None: PEFT refuses the combination of options."""
    from peft import LoraConfig, get_peft_model
    try:
        return get_peft_model(load_base(base), LoraConfig(**case["config"]))
    except Exception:  # of whatever kind
        return None


def saved_by_peft(case, base, batch, folder, program):
    import torch
    adapted = adapted_by_peft(case, base)
    if adapted is None:
        return []
    torch.manual_seed(case["seed"] + 1)
    with torch.no_grad():  # larger than usual: all terms matter
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, .2)
    expected = logits_of(adapted, batch)
    adapter = folder / "adapter"
    adapted.save_pretrained(adapter)
    path = adapter / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["base_model_name_or_path"] = str(base)
    path.write_text(json.dumps(saved))
    ours, error = logits_here(adapter, folder, program)
    refused = [key for key in REFUSED if key in case["config"]]
    if refused:
        return [] if ours is None and refused[0] in error else [
            f"{refused[0]} is not refused by name: {error}"]
    if ours is None:
        return [f"load: {error}"]
    found = compared("load", ours, expected)
    merged = folder / "merged"
    output, error = run_program(
        program, "convert", "--from", base, "--merge-lora", adapter, "--to",
        merged, "--no-tokenizer")
    if output is None:
        return [*found, f"merge: {error}"]
    found += compared("merge", logits_of(load_base(merged), batch), expected)
    ours, error = logits_here(merged, folder, program)
    return found + ([f"merged: {error}"] if ours is None
                    else compared("merged", ours, expected))


def trained_here(case, base, batch, folder, program):
    from array import array
    from peft import PeftModel
    if adapted_by_peft(case, base) is None:
        return []
    names = {"lora_alpha": "alpha"}
    ours_too = {"r", "lora_alpha", "target_modules", "use_rslora", "bias",
                "rank_pattern", "alpha_pattern", "exclude_modules",
                "modules_to_save", "task_type", "use_dora", "layers_to_transform"}
    lora = {names.get(key, key): value for key, value in case["config"].items()
            if key in ours_too}
    if isinstance(lora.get("layers_to_transform"), int):
        lora["layers_to_transform"] = [lora["layers_to_transform"]]
    init = case["config"].get(
        "init_lora_weights", "gaussian" if "use_dora" in lora else "random")
    (folder / "tokens.bin").write_bytes(array(
        "H", [3 + (7 * i * i + i // 5) % 60 for i in range(400)]).tobytes())
    run = folder / "run"
    write_json(folder / "train.json", {
        "task": "language_model",
        "model": {"folder": str(base), "max_length": 16,
                  "lora": {**lora, "init": init, "merge": True}},
        "data": {"train": str(folder / "tokens.bin")},
        "optimizer": {"type": "adamw", "lr": 0.05},
        "training": {"batch_size": 2, "max_steps": 2},
        "output": {"folder": str(run)}})
    output, error = run_program(program, "train", folder / "train.json")
    if output is None:
        return [f"train: {error}"]
    ours, error = logits_here(run / "adapter", folder, program)
    if ours is None:
        return [f"adapter: {error}"]
    moved = compared("", logits_of(load_base(base), batch), ours)
    try:
        adapted = PeftModel.from_pretrained(load_base(base), run / "adapter")
    except Exception as error:
        return [f"PEFT: {type(error).__name__}: {error}"[:600]]
    found = compared("PEFT", ours, logits_of(adapted, batch))
    found += compared("PEFT merged", logits_of(adapted.merge_and_unload(), batch), ours)
    found += compared("model/", logits_of(load_base(run / "model"), batch), ours)
    return found + ([] if moved else ["training changed nothing"])


SUITE = Adapters()

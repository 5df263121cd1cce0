# SPDX-License-Identifier: Apache-2.0
"""generation_config.json: keys and their combinations, beside generate() of
transformers. The models are those of tests/zoo/fixtures/models; sampling is
only compared where one token is left to be drawn."""
import json
import shutil

from suite import RecordedSuite, ZOO_FIXTURES, run_program, write_json

MODELS = ["gpt2", "llama", "qwen2", "opt", "t5", "glm4", "qwen3_moe", "mt5"]
ENCODER_DECODERS = {"t5", "mt5"}
FEWEST_TOKENS = 60  # of the vocabularies


def tokens(random, count):
    return [random.randrange(3, FEWEST_TOKENS) for _ in range(count)]


KEYS = {
    "min_new_tokens": lambda r: r.choice([1, 4, 9]),
    "min_length": lambda r: r.choice([0, 5, 14]),
    "repetition_penalty": lambda r: r.choice([.7, 1.0, 1.3, 2.5]),
    "no_repeat_ngram_size": lambda r: r.choice([0, 1, 2, 3]),
    "eos_token_id": lambda r: r.choice([r.randrange(3, 60), tokens(r, 6)]),
    "bad_words_ids": lambda r: [tokens(r, r.randrange(1, 4)) for _ in range(12)],
    "suppress_tokens": lambda r: tokens(r, r.choice([0, 15])),
    "begin_suppress_tokens": lambda r: tokens(r, 25),
    "forced_bos_token_id": lambda r: r.randrange(3, 60),
    "forced_eos_token_id": lambda r: r.choice([r.randrange(3, 60), tokens(r, 2)]),
    "sequence_bias": lambda r: [
        [tokens(r, r.randrange(1, 3)), r.uniform(-8, 8)] for _ in range(15)],
    "temperature": lambda r: r.choice([0.0, .5, 1.0, 2.0]),
    "top_k": lambda r: r.choice([-1, 0, 1, 50]),
    "top_p": lambda r: r.choice([.5, 1.0]),
    "length_penalty": lambda r: r.choice([-1.0, 0.0, .5, 2.0]),
    "early_stopping": lambda r: r.choice([True, False, "never", None]),
    "num_return_sequences": lambda r: r.choice([1, 2]),
    "bos_token_id": lambda r: 1,
    "use_cache": lambda r: r.random() < .5,
    "renormalize_logits": lambda r: False,
    "typical_p": lambda r: 1.0,
    "diversity_penalty": lambda r: 0.0,
    "decoder_start_token_id": lambda r: r.choice([0, 3, 7]),
}
BEAMS_ONLY = {"length_penalty", "early_stopping", "num_return_sequences"}
ENCODER_DECODERS_ONLY = {"decoder_start_token_id"}


class Generation(RecordedSuite):
    name = "generation"
    needs = ("transformers", "torch")

    def cases(self, random, count):
        return [self.case(random, MODELS[i % len(MODELS)]) for i in range(count)]

    def case(self, random, model):
        beams = random.choice([1, 1, 1, 2, 3])
        config = {} if beams == 1 else {"num_beams": beams}
        keys = [key for key in KEYS
                if (beams > 1 or key not in BEAMS_ONLY)
                and (model in ENCODER_DECODERS or key not in ENCODER_DECODERS_ONLY)]
        for key in random.sample(keys, random.randrange(1, 7)):
            config[key] = KEYS[key](random)
        if random.random() < .15 and beams == 1:  # nothing is left to chance
            config.update(do_sample=True, top_k=1)
            config["temperature"] = random.choice([.5, 1.0])
        elif random.random() < .5:
            config["do_sample"] = False
        lengths = random.random()
        if lengths < .7:
            config["max_new_tokens"] = random.choice([1, 8, 12])
        if .5 < lengths:
            config["max_length"] = random.choice([12, 20])
        # transformers takes nothing from config.json where this file is there.
        config["pad_token_id"] = 0
        config.setdefault("eos_token_id", 2)
        if model in ENCODER_DECODERS:
            config.setdefault("decoder_start_token_id", 0)
        length = random.randrange(1, 9)  # of all: max_length is of the batch
        prompts = [tokens(random, length) for _ in range(3)]
        return {"model": model, "config": config, "prompts": prompts}

    def write(self, case, folder):
        source = ZOO_FIXTURES / "models" / case["model"]
        for name in ["config.json", "model.safetensors"]:
            shutil.copy(source / name, folder / name)
        write_json(folder / "generation_config.json", case["config"])
        write_json(folder / "prompts.json", {"input_ids": case["prompts"]})

    def expected(self, case, folder):
        import torch
        import transformers
        kind = json.loads((folder / "config.json").read_text())["architectures"][0]
        model = getattr(transformers, kind).from_pretrained(folder).eval()
        rows = []
        for prompt in case["prompts"]:
            with torch.no_grad():
                found = model.generate(torch.tensor([prompt]))
            rows += found.tolist()
        return {"sequences": rows}

    def actual(self, case, folder, program):
        output, error = run_program(
            program, "generate", "--model", folder, "--input",
            folder / "prompts.json", "--output", folder / "sequences.json")
        if output is None:
            return {"refused": error}
        return json.loads((folder / "sequences.json").read_text())

    def difference(self, case, expected, actual):
        if "refused" in expected and "refused" in actual:
            return ""
        ends = {case["config"].get("pad_token_id")}

        def shown(answer):
            return [stripped(row, ends) for row in answer.get("sequences", [])]
        if "refused" not in expected and "refused" not in actual \
                and shown(expected) == shown(actual):
            return ""
        return (f"\n    {actual.get('refused', shown(actual))}"
                f"\n    expected {expected.get('refused', shown(expected))}")


def stripped(row, ends):
    """Without the padding behind shorter ones."""
    while len(row) > 1 and row[-1] in ends:
        row = row[:-1]
    return row


SUITE = Generation()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `tessera plan` says of runs with what they take on the CPU.

    plan_accuracy.py [--build build/release] [--time [--steps 9] [--rounds 3]]
        [--only NAME ...]

`tessera plan` searches layouts of small models under limits of memory that leave
out what is fastest without. Each of its picks trains two steps under its limit
(--simulate-world, --memory-cap), a rank of each pipeline stage, and three steps as
a job with all its ranks, of which rank 0 logs its peak, batches included. Exits
with 1 if the first peak is more than 1 % from the planned one. In MB.

--time compares times of steps of larger models: those that the search predicts by
the rates of `tessera bench --training`, and the medians of a job. Each round measures
the rates and then trains all of them; the table has medians of the rounds. Exits with
1 if one is more than 15 % off. In ms. It means something on a machine that does
nothing else, takes a few minutes a round there, and gives ranks equal shares of the
cores.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 0.01
TIME_TOLERANCE = 0.15

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 500, "n_positions": 256, "n_embd": 96, "n_layer": 9, "n_head": 4}
WITHOUT_DROPOUT = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
         "vocab_size": 500, "hidden_size": 96, "intermediate_size": 256,
         "num_hidden_layers": 9, "num_attention_heads": 8,
         "num_key_value_heads": 4, "max_position_embeddings": 256}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"],
        "vocab_size": 500, "hidden_size": 96, "intermediate_size": 384,
        "num_hidden_layers": 9, "num_attention_heads": 4,
        "max_position_embeddings": 256}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
      "vocab_size": 500, "d_model": 96, "d_kv": 24, "d_ff": 384, "num_layers": 2,
      "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
      "pad_token_id": 0}
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"],
       "hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 9,
       "num_attention_heads": 4, "image_size": 64, "patch_size": 4}
MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
       "vocab_size": 500, "hidden_size": 96, "intermediate_size": 192,
       "moe_intermediate_size": 64, "num_hidden_layers": 4,
       "num_attention_heads": 4, "head_dim": 24, "num_key_value_heads": 2,
       "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
       "max_position_embeddings": 256}

CAUSAL = ("gpt2", "llama", "qwen3_moe")


@dataclasses.dataclass
class Sample:
    """A recipe and the devices it is planned for."""

    name: str
    model: dict
    ranks: int
    rows: int  # of a step, of all ranks
    limit: float  # of a device's memory, in peaks of what is chosen without it
    keys: tuple = ()
    options: tuple = ()  # of `tessera plan`
    length: int = 256

    @property
    def kind(self):
        return self.model["model_type"]

    def recipe(self):
        is_text = self.kind in CAUSAL
        recipe = {
            "task": "language_model" if is_text else "examples",
            "model": {"config": "model.json"},
            "data": {"train": "tokens.bin" if is_text else "examples.safetensors"},
            "optimizer": {"lr": 1e-4},
            "training": {"batch_size": 1, "accumulate": self.rows // self.ranks,
                         "log_every": 1},
            "output": {"folder": "run"}}
        if self.kind == "vit":
            recipe["model"]["classes"] = ["a", "b", "c"]
        elif is_text:
            recipe["model"]["max_length"] = self.length
        if self.kind == "bert":
            recipe["data"]["mask"] = {"mask_token": 2, "never_masked": [0, 1]}
        return recipe


BF16 = "precision.parameters=bfloat16"
HOST = ("--host-memory=64GiB",)
SAMPLES = [
    Sample("GPT-2", GPT2, 1, 8, .4),
    Sample("GPT-2, SGD", {**GPT2, **WITHOUT_DROPOUT}, 1, 8, .7,
           ("optimizer.type=sgd", "optimizer.momentum=0.9")),
    Sample("GPT-2 in bfloat16, host", GPT2, 1, 4, .3, (BF16,), HOST),
    Sample("GPT-2, clipped", GPT2, 2, 8, .5, ("training.clip_grad_norm=1",)),
    Sample("GPT-2 in bfloat16", GPT2, 4, 8, .6, (BF16,)),
    Sample("GPT-2, ZeRO-2", GPT2, 2, 8, .6, ("sharding.zero_stage=2",)),
    Sample("GPT-2, ZeRO-1", GPT2, 4, 8, .7, ("sharding.zero_stage=1",)),
    Sample("LLaMA, Lion", LLAMA, 1, 8, .6, ("optimizer.type=lion",)),
    Sample("LLaMA in bfloat16", LLAMA, 2, 8, .5,
           (BF16, "precision.gradients=bfloat16", "optimizer.moment_dtype=bfloat16")),
    Sample("LLaMA, averaged", LLAMA, 4, 8, .6, ("optimizer.ema_decay=0.9",)),
    Sample("LLaMA, a budget", LLAMA, 1, 4, .3, (), HOST),
    Sample("LLaMA, 2 ranks, host", LLAMA, 2, 8, .5, (BF16,), HOST),
    Sample("BERT, LAMB", BERT, 1, 8, .4, ("optimizer.type=lamb",)),
    Sample("BERT, Adan", BERT, 4, 16, .6, ("optimizer.type=adan",)),
    Sample("T5, Adafactor", T5, 1, 8, .6, ("optimizer.type=adafactor",)),
    Sample("T5 in bfloat16", T5, 2, 8, .6, (BF16,)),
    Sample("ViT", VIT, 1, 8, .5),
    Sample("ViT, Muon", VIT, 4, 16, .5, ("optimizer.type=muon",)),
    Sample("Qwen3-MoE", MOE, 1, 8, .6),
    Sample("Qwen3-MoE, 3 ranks", MOE, 3, 12, .6, ("optimizer.type=adam",), HOST),
]


# Large enough that products take most of a step; without dropout, whose random
# numbers take the CPU far longer than their bytes say.
GPT2_512 = {**GPT2, **WITHOUT_DROPOUT, "vocab_size": 8000, "n_embd": 512,
            "n_layer": 6, "n_head": 8}
LLAMA_512 = {**LLAMA, "vocab_size": 8000, "hidden_size": 512,
             "intermediate_size": 1408, "num_hidden_layers": 6}
BERT_512 = {**BERT, "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 2048,
            "num_hidden_layers": 6, "num_attention_heads": 8,
            "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
T5_512 = {**T5, "vocab_size": 8000, "d_model": 512, "d_kv": 64, "d_ff": 2048,
          "num_heads": 8, "dropout_rate": 0}
VIT_512 = {**VIT, "hidden_size": 512, "intermediate_size": 2048,
           "num_hidden_layers": 6, "num_attention_heads": 8}
MOE_512 = {**MOE, "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1024,
           "moe_intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
TIMED_SAMPLES = [
    Sample("GPT-2", GPT2_512, 1, 8, 1.2),
    Sample("GPT-2, half the memory", GPT2_512, 1, 8, .6),
    Sample("GPT-2, 2 ranks", GPT2_512, 2, 8, 1.2),
    Sample("LLaMA", LLAMA_512, 1, 8, 1.2),
    Sample("LLaMA, 2 ranks", LLAMA_512, 2, 8, .85),
    Sample("LLaMA in bfloat16", LLAMA_512, 1, 8, 1.2, (BF16,)),
    Sample("GPT-2 in bfloat16, host", GPT2_512, 1, 8, 1.2,
           (BF16, "placement.optimizer=host", "memory.host_bytes=16GiB"), HOST),
    Sample("BERT", BERT_512, 1, 8, 1.2),
    Sample("T5", T5_512, 1, 8, 1.2),
    Sample("T5 in bfloat16, 2 ranks", T5_512, 2, 8, 1.2, (BF16,)),
    Sample("ViT", VIT_512, 1, 8, 1.2),
    Sample("Qwen3-MoE", MOE_512, 1, 8, 1.2),
]


def write_tensors(path, tensors):
    """A safetensors file of (name, dtype, shape, bytes)."""
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for *_, data in tensors)


def write_data(folder, sample):
    """What the recipe names: examples of the full length."""
    numbers = random.Random(1)
    rows, length = sample.rows, sample.length

    def tokens(count):
        return struct.pack(f"<{count}H", *numbers.choices(range(3, 500), k=count))

    if sample.kind in CAUSAL:
        (folder / "tokens.bin").write_bytes(tokens(rows * length + 1))
    elif sample.kind == "vit":
        side = sample.model["image_size"]
        write_tensors(folder / "examples.safetensors", [
            ("pixel_values", "U8", [rows, 3, side, side],
             numbers.randbytes(rows * 3 * side * side)),
            ("labels", "U16", [rows],
             struct.pack(f"<{rows}H", *numbers.choices(range(3), k=rows)))])
    else:
        tensors = [("input_ids", "U16", [rows, length], tokens(rows * length)),
                   ("attention_mask", "U8", [rows, length],
                    (b"\1" * length + b"\1" * (length - 1) + b"\0") * (rows // 2))]
        if sample.kind == "t5":
            tensors.append(("labels", "U16", [rows, length], tokens(rows * length)))
        write_tensors(folder / "examples.safetensors", tensors)


class Planner:
    """`tessera` with a sample's recipe."""

    def __init__(self, tessera, folder, sample, threads=1):
        self.tessera = tessera
        self.sample = sample
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        folder.mkdir()
        (folder / "model.json").write_text(json.dumps(sample.model))
        (folder / "train.json").write_text(json.dumps(sample.recipe()))
        write_data(folder, sample)

    def run(self, *words):
        """What the command prints."""
        command = [str(self.tessera), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=self.environment, cwd=self.folder)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def plan(self, *words):
        return json.loads(self.run("plan", "train.json", "--json", *self.sample.keys,
                                   *words))

    def search(self, device_bytes, *options):
        """The run that the search chooses."""
        answer = self.plan(
            "--device=cpu", f"--devices={self.sample.ranks}", "--margin",
            str(round(TOLERANCE * device_bytes)), "--device-memory", str(device_bytes),
            *self.sample.options, *options)
        return answer["runs"][answer["best"]]

    def limit(self, *options):
        """The sample's limit of a device's memory."""
        return round(self.sample.limit * self.search(1 << 40, *options)["device_bytes"])

    def measure(self, run, device_bytes):
        """The largest peak of a rank of each pipeline stage, under the limit."""
        sizes = dict(key.split("=") for key in run["overrides"])
        stages = int(sizes.get("parallel.pipeline", 1))
        peak = 0
        for stage in range(stages):
            answer = self.plan(
                *run["overrides"], "device=cpu",
                f"--simulate-world={self.sample.ranks}",
                f"--simulate-rank={stage * self.sample.ranks // stages}",
                f"--memory-cap={device_bytes}")
            peak = max(peak, *(row["measured"] for row in answer["memory"]
                               if (row["tier"], row["what"]) == ("device", "peak")))
        return peak


    def train(self, run, steps):
        """The lines of metrics of the job with all its ranks."""
        self.run("launch", "--nproc", str(self.sample.ranks), "--", str(self.tessera),
                 "train", "train.json", "device=cpu", "output.overwrite=true",
                 "training.epochs=1000", f"training.max_steps={steps}",
                 *self.sample.keys, *run["overrides"])
        lines = (self.folder / "run/metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def bench(self):
        """Options of `tessera plan` with the rates of this machine, measured as the
        ranks share it."""
        names = [f"bench{rank}.json" for rank in range(self.sample.ranks)]
        processes = []
        for name in names:
            with (self.folder / name).open("w") as file:
                processes.append(subprocess.Popen(
                    [str(self.tessera), "bench", "--json", "--no-disk", "--seconds", "3",
                     "--array-mib", "64", "--training"], stdout=file, env=self.environment))
        if any(process.wait() for process in processes):
            raise RuntimeError("tessera bench failed")
        if self.sample.ranks > 1:
            self.run("launch", "--nproc", str(self.sample.ranks), "--", str(self.tessera),
                     "bench", "comm", "--min-bytes", "1MiB", "--max-bytes", "16MiB",
                     "--iterations", "5", "--output", "comm.json")
            names.append("comm.json")
        return [f"--bandwidths={self.folder / name}" for name in names]


def chosen(run):
    """What the search has chosen, in words."""
    words = [run["layout"]]
    if "budget" in run["weights"] or "shard 1" not in run["layout"]:
        words.append(run["weights"].replace("zero ", "ZeRO-"))
    recomputed = run["recomputed"]
    parts = [name for name in ("operators", "attention") if recomputed[name]]
    if recomputed["layers"]:
        parts.append(f"{recomputed['layers']} layers")
    if parts:
        words.append("recomputes " + " and ".join(parts))
    if run["on_host"]:
        words.append(f"{run['on_host'].replace('+', ' and ')} on the host")
    return ", ".join(words)


def compare_memory(planner):
    """A row of the table, and whether the plan is right."""
    limit = planner.limit()
    run = planner.search(limit)
    measured = planner.measure(run, limit)
    job = planner.train(run, 3)[-1]["memory_bytes"]
    ratio = run["device_bytes"] / measured
    return ([chosen(run), f"{limit / 1e6:.2f}", f"{run['device_bytes'] / 1e6:.2f}",
             f"{measured / 1e6:.2f}", f"{job / 1e6:.2f}", f"{ratio:.4f}"],
            abs(ratio - 1) <= TOLERANCE)


def times(planner, rates, steps, keys):
    """What the search predicts, and the median of a job's steps, in seconds.

    keys: of the configuration to plan as it is, chosen before; None: the search
    chooses it.
    """
    if keys is None:
        run = planner.search(planner.limit(*rates), *rates)
    else:
        answer = planner.plan("--as-given", "--device=cpu", f"--devices={planner.sample.ranks}",
                              "--device-memory=1TiB", *planner.sample.options, *rates, *keys)
        run = answer["runs"][answer["best"]]
        run["overrides"] = keys
    lines = planner.train(run, steps + 1)
    return run, run["step_s"], statistics.median(line["step_s"] for line in lines[1:])


def compare_times(planners, rounds, steps):
    """Rows of the table, and whether predictions are within 15 %."""
    runs, found = {}, {}
    for _ in range(rounds):
        rates = {}
        for planner in planners:
            sample = planner.sample
            if sample.ranks not in rates:
                rates[sample.ranks] = planner.bench()
            keys = runs[sample.name]["overrides"] if sample.name in runs else None
            run, predicted, measured = times(planner, rates[sample.ranks], steps, keys)
            runs.setdefault(sample.name, run)
            found.setdefault(sample.name, []).append((predicted, measured))
            print(f"{sample.name}: {predicted:.3f}, {measured:.3f} s", file=sys.stderr,
                  flush=True)
    for planner in planners:
        name = planner.sample.name
        predicted, measured = (statistics.median(each) for each in zip(*found[name]))
        ratio = predicted / measured
        yield (planner.sample, [chosen(runs[name]), f"{1e3 * predicted:.0f}",
                                f"{1e3 * measured:.0f}", f"{ratio:.2f}"],
               abs(ratio - 1) <= TIME_TOLERANCE)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--time", action="store_true", help="times and not memory")
    parser.add_argument("--steps", type=int, default=9, help="that --time measures")
    parser.add_argument("--rounds", type=int, default=3, help="of --time")
    parser.add_argument("--only", nargs="+", default=[], help="names of samples")
    arguments = parser.parse_args()
    tessera = arguments.build.resolve() / "bin/tessera"
    samples = TIMED_SAMPLES if arguments.time else SAMPLES
    columns = ["recipe", "ranks", "chosen"] + (
        ["predicted", "measured", "predicted / measured"] if arguments.time else
        ["limit", "planned", "measured", "job", "planned / measured"])
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    failures = 0

    def show(sample, row):
        print(f"| {sample.name} | {sample.ranks} | {' | '.join(row)} |", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        planners = []
        for number, sample in enumerate(samples):
            if arguments.only and sample.name not in arguments.only:
                continue
            folder = pathlib.Path(scratch) / str(number)
            if arguments.time:
                threads = max(1, len(os.sched_getaffinity(0)) // sample.ranks)
                planners.append(Planner(tessera, folder, sample, threads))
                continue
            try:
                row, is_right = compare_memory(Planner(tessera, folder, sample))
            except RuntimeError as error:
                row, is_right = [str(error)], False
            failures += not is_right
            show(sample, row)
        if planners:
            for sample, row, is_right in compare_times(planners, arguments.rounds,
                                                       arguments.steps):
                failures += not is_right
                show(sample, row)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

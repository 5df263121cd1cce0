#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models in many ways and compares their bits between two builds.

    record_curves.py record BUILD OUT.json [--keep FOLDER]
    record_curves.py compare A.json B.json
    record_curves.py resume BUILD FOLDER

`record` trains each run of RUNS with the `tessera` of a build folder and writes
its losses, gradient norms and a checksum of its weights. The bits depend on the
machine (the CPU's matrix products), so both builds are recorded on one. With
--keep it leaves the run folders, whose checkpoints `resume` has another build
go on from: that they load, and give the losses of the run that was not stopped.

Exits with 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

from gpu_kit.jobs import write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 8
HALF = 4  # the step of the checkpoint that `resume` starts from

GPT = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 32,
}
MODELS = {
    "gpt": GPT,
    "still_gpt": {**GPT, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 96,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
    "moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32,
    },
}

HOST = ["placement.parameters=host", "placement.gradients=host", "placement.optimizer=host"]
LORA = (
    'model.lora={"target_modules": ["c_attn", "c_fc"], "r": 4, "dropout": 0.1,'
    ' "merge": true}'
)

# Name: model, ranks, overrides. {folder} is that of the runs.
RUNS = {
    "alone": ("gpt", 1, []),
    "zero1": ("gpt", 2, ["sharding.zero_stage=1"]),
    "zero3": ("gpt", 3, ["training.clip_grad_norm=0.5"]),
    "hybrid": ("still_gpt", 4, ["sharding.shard_ranks=2"]),
    "bert": ("bert", 2, ["data.mask.mask_token=2"]),
    "t5": ("t5", 2, ["training.accumulate=2"]),
    "moe": ("moe", 2, []),
    "experts": ("moe", 4, ["parallel.expert=2", "training.clip_grad_norm=0.5"]),
    # From the weights of the first run.
    "lora": ("gpt", 2, [LORA, "model.config=", "model.folder={folder}/alone"]),
    "mesh": (
        "gpt",
        8,
        [
            "parallel.tensor=2",
            "parallel.pipeline=2",
            "parallel.shard=2",
            "training.accumulate=2",
            "training.clip_grad_norm=0.5",
        ],
    ),
    "tied_stages": ("still_gpt", 2, ["parallel.shard=1", "parallel.pipeline=2", "training.accumulate=2"]),
    "context": ("still_gpt", 4, ["parallel.context=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.shard=1"]),
    "host": ("gpt", 2, [*HOST, "training.clip_grad_norm=0.5"]),
    "nvme": ("gpt", 2, ["memory.nvme_path={folder}/scratch", "placement.parameters=nvme", "placement.gradients=nvme", "placement.optimizer=nvme"]),
    "budget": ("gpt", 2, ["memory.device_bytes=500000", "memory.host_bytes=100MB"]),
    "float16": ("gpt", 2, ["precision.parameters=float16", "training.clip_grad_norm=0.5"]),
    "bfloat16": ("gpt", 2, ["precision.parameters=bfloat16", "precision.gradients=bfloat16", "precision.accumulate=float32", "training.accumulate=2"]),
    "in_backward": ("gpt", 2, ["update_in_backward=true"]),
    "checkpointed": ("gpt", 2, ["model.checkpoint_layers=4", "placement.activations=host"]),
    "muon": ("still_gpt", 2, ["optimizer.type=muon"]),
    "adafactor": ("still_gpt", 2, ["optimizer.type=adafactor"]),
    "lamb": ("still_gpt", 2, ["optimizer.type=lamb"]),
}


def write_inputs(folder):
    draw = random.Random(7)
    tokens = [(i + i // 37 + draw.randrange(3)) % 90 + 3 for i in range(32 * 512)]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    rows, length = 256, 16
    ids = tokens[: rows * length]
    whole = {"input_ids": [rows, length, ids]}
    write_safetensors(folder / "bert.safetensors", whole)
    backward = [
        t for row in range(rows) for t in reversed(ids[row * length : (row + 1) * length])
    ]
    write_safetensors(
        folder / "t5.safetensors", {**whole, "labels": [rows, length, backward]}
    )
    for name, config in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))


def command_of(build, inputs, output, name):
    model, ranks, overrides = RUNS[name]
    examples = model in ("bert", "t5")
    config = {
        "task": "examples" if examples else "language_model",
        "device": "cpu",
        "model": {"config": str(inputs / f"{model}.json")},
        "data": {
            "train": str(inputs / (f"{model}.safetensors" if examples else "tokens.bin"))
        },
        "optimizer": {"lr": 1e-2},
        "schedule": {"decay": "constant"},
        "training": {
            "batch_size": 2,
            "max_steps": STEPS,
            "save_every": HALF,
            "keep_last": 0,
            "clip_grad_norm": 0,
            "seed": 3,
        },
        "output": {"folder": str(output / name)},
    }
    if not examples:
        config["model"]["max_length"] = 32
    file = inputs / f"{name}.train.json"
    file.write_text(json.dumps(config))
    tessera = str(build / "bin" / "tessera")
    return [
        tessera,
        "launch",
        "--nproc",
        str(ranks),
        "--",
        tessera,
        "train",
        str(file),
        *(word.replace("{folder}", str(inputs)) for word in overrides),
    ]


def result_of(folder):
    lines = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    weights = hashlib.sha256()
    for file in sorted(folder.glob("model/*.safetensors")):
        weights.update(file.read_bytes())
    steps = {line["step"]: line for line in lines if "loss" in line}
    return {
        "loss": [steps[s]["loss"] for s in sorted(steps)],
        "grad_norm": [steps[s].get("grad_norm") for s in sorted(steps)],
        "weights": weights.hexdigest(),
    }


def run(command):
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
    )
    return done.stdout if done.returncode else ""


def record(build, out, keep, only):
    results, failed = {}, []
    with tempfile.TemporaryDirectory() as made:
        inputs = pathlib.Path(keep or made)
        inputs.mkdir(parents=True, exist_ok=True)
        write_inputs(inputs)
        (inputs / "scratch").mkdir(exist_ok=True)
        for name in only or RUNS:
            shutil.rmtree(inputs / name, ignore_errors=True)
            error = run(command_of(build, inputs, inputs, name))
            if error:
                failed.append(name)
                print(f"{name}: failed\n{error[-3000:]}", flush=True)
                continue
            results[name] = result_of(inputs / name)
            print(f"{name}: {results[name]['loss'][-1]}", flush=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    return failed


def differences(one, other):
    names = sorted(set(one) | set(other))
    return [name for name in names if one.get(name) != other.get(name)]


def resume(build, folder):
    """Goes on from the middle of each run that `record --keep` left."""
    wrong = []
    for name in RUNS:
        if not (folder / name).exists():
            continue
        expected = result_of(folder / name)
        again = folder / "resumed"
        shutil.rmtree(again, ignore_errors=True)
        again.mkdir()
        shutil.copytree(folder / name, again / name)
        command = command_of(build, folder, again, name)
        error = run(
            [*command, "training.resume=true", f"training.resume_from=step-{HALF}"]
        )
        if error:
            print(f"{name}: failed\n{error[-3000:]}", flush=True)
            wrong.append(name)
            continue
        got = result_of(again / name)
        same = got["loss"][-HALF:] == expected["loss"][-HALF:]
        same = same and got["weights"] == expected["weights"]
        print(f"{name}: {'the same' if same else 'DIFFERENT'}", flush=True)
        wrong += [] if same else [name]
    return wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("build", type=pathlib.Path)
    recording.add_argument("out", type=pathlib.Path)
    recording.add_argument("--keep", type=pathlib.Path)
    recording.add_argument("--only", nargs="+", choices=list(RUNS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("one", type=pathlib.Path)
    comparing.add_argument("other", type=pathlib.Path)
    resuming = commands.add_parser("resume")
    resuming.add_argument("build", type=pathlib.Path)
    resuming.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "record":
        wrong = record(
            options.build.resolve(), options.out, options.keep, options.only
        )
    elif options.command == "compare":
        wrong = differences(
            json.loads(options.one.read_text()), json.loads(options.other.read_text())
        )
    else:
        wrong = resume(options.build.resolve(), options.folder.resolve())
    if wrong:
        print("different or failed: " + ", ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of `tessera generate` next to transformers' generate().

    generate.py build/release/bin/bench_generate [--rounds 3] [--threads 1 2]

Needs torch and transformers. Models have random weights; both sides go on
greedily with a cache, in float32, from the same prompts, without an end token,
and have to write the same tokens. Rounds alternate; a figure is the median of
wall times, without loading.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = {
    "gpt2_31m": ("GPT2LMHeadModel", "GPT2Config", dict(
        n_embd=512, n_layer=6, n_head=8, vocab_size=16384)),
    "llama_33m": ("LlamaForCausalLM", "LlamaConfig", dict(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=16384,
        pad_token_id=0)),
}

TRANSFORMERS = """
import json, sys, time, torch, transformers
folder, prompt, new, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
ids = torch.tensor(json.loads(prompt))
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32).eval()
model.generation_config.eos_token_id = None
call = lambda n: model.generate(
    ids, attention_mask=torch.ones_like(ids), max_new_tokens=n,
    do_sample=False, pad_token_id=0)
call(4)
begin = time.perf_counter()
tokens = call(int(new))
seconds = time.perf_counter() - begin
print(json.dumps([seconds, tokens.tolist()]))
"""


def run(command, threads):
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def make(folder, name):
    import torch
    import transformers as hf
    model, config, changes = MODELS[name]
    torch.manual_seed(1)
    getattr(hf, model)(getattr(hf, config)(
        **changes, bos_token_id=1, eos_token_id=2)).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench_generate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    given = parser.parse_args()
    print("| model | threads | batch | Tessera, tokens/s | transformers | ratio"
          " (range) |\n| --- | --- | --- | --- | --- | --- |")
    for name in given.models:
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch) / name)
            make(folder, name)
            for threads in given.threads:
                for batch in given.batches:
                    compare(given, name, folder, threads, batch)


def compare(given, name, folder, threads, batch):
    prompt = json.dumps([
        [3 + (7 * row + 13 * i) % 997 for i in range(given.length)]
        for row in range(batch)])
    words = [folder, prompt, str(given.new), str(threads)]
    ours, theirs = [], []
    for turn in range(given.rounds):
        sides = [(ours, [given.bench_generate, *words]),
                 (theirs, [sys.executable, "-c", TRANSFORMERS, *words])]
        tokens = []
        for times, command in sides if turn % 2 == 0 else sides[::-1]:
            seconds, found = run(command, threads)
            times.append(seconds)
            tokens.append(found)
        if tokens[0] != tokens[1]:
            sys.exit(f"{name}, batch {batch}: the tokens differ")
    ratios = sorted(b / a for a, b in zip(ours, theirs))
    rate = [batch * given.new / statistics.median(times)
            for times in (ours, theirs)]
    print(f"| {name} | {threads} | {batch} | {rate[0]:.0f} | {rate[1]:.0f} | "
          f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - "
          f"{ratios[-1]:.2f}) |", flush=True)


if __name__ == "__main__":
    main()

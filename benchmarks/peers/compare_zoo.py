#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times models of the zoo next to transformers, on one CPU thread.

    compare_zoo.py build/release/bin/bench_zoo [--rounds 3] [--models bert_base]

Needs torch and transformers. Models have random weights and no dropout; both
sides take scaled_dot_product_attention, the same loss, and float32, on the same
core. Times are of the processor, so that other programs matter little; rounds
alternate, the first of them too, and a figure is the median over all. With
--options ours is given more: loss-only is ModelInput::loss_only, as in training,
auto-matmul is set_cpu_matmul(CpuMatmul::kAuto), keep-memory is
keep_freed_cpu_memory(true), as init() does for training.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers as hf

MODELS = {
    "bert_base": lambda: hf.BertForMaskedLM(hf.BertConfig()),
    "gpt2_124m": lambda: hf.GPT2LMHeadModel(hf.GPT2Config()),
    "llama_110m": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, num_key_value_heads=4,
        pad_token_id=None)),
}


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def milliseconds(work):
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)


def transformers_times(folder, batch, length, repeats):
    torch.set_num_threads(1)
    config = hf.AutoConfig.from_pretrained(folder)
    model = getattr(hf, config.architectures[0]).from_pretrained(folder).eval()
    model.config.use_cache = False
    torch.manual_seed(1)
    ids = torch.randint(0, 1000, (batch, length))
    times = {"forward": [], "both": []}
    for i in range(repeats + 1):
        with torch.no_grad():
            forward = milliseconds(lambda: model(ids, labels=ids))
        both = milliseconds(lambda: model(ids, labels=ids).loss.backward())
        model.zero_grad()
        if i > 0:
            times["forward"].append(forward)
            times["both"].append(both)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench_zoo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--options", nargs="+", default=[],
                        choices=["loss-only", "auto-matmul", "keep-memory"])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--transformers", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})  # Children have it too.
    sizes = [arguments.batch, arguments.length, arguments.repeats]
    if arguments.transformers:
        print(json.dumps(transformers_times(arguments.transformers, *sizes)))
        return
    print(f"{cpu_name()}, core {arguments.core} of {os.cpu_count()}, batch "
          f"{arguments.batch} x {arguments.length} tokens, {arguments.rounds} "
          f"rounds of {arguments.repeats}")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            MODELS[name]().save_pretrained(folder)
            ours = [arguments.bench_zoo, folder, *map(str, sizes),
                    *arguments.options]
            theirs = [sys.executable, *sys.argv, "--transformers", folder]
            found = {"tessera": {}, "transformers": {}}
            for number in range(arguments.rounds):
                sides = [("tessera", ours), ("transformers", theirs)]
                for who, command in sides[::-1] if number % 2 else sides:
                    line = subprocess.run(
                        command, check=True, capture_output=True,
                        text=True).stdout.splitlines()[-1]
                    for key, times in json.loads(line).items():
                        found[who].setdefault(key, []).extend(times)
        for key in ["forward", "both"]:
            mine, other = (statistics.median(found[who][key])
                           for who in ["tessera", "transformers"])
            print(f"{name} {key}: tessera {mine:.0f} ms, transformers "
                  f"{other:.0f} ms, {other / mine:.2f} times as fast")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A 1B-class GPT-2 on one CUDA device: Tessera, LibTorch alone, PyTorch alone
and FSDP2, eager and compiled, in turns; or with optimizer state on the host,
next to FSDP2's and DeepSpeed's offload.

Each round runs every contender once; the table has medians over the rounds
(lowest and highest), and ratios are medians over rounds of ratios within one.

mfu = tokens/s x (6 x (parameters - positions) + 12 x layers x width x sequence)
/ peak: the operations of forward and backward, attention counted in full, tables
that are only looked up not at all. The peak is the device's dense bfloat16 rate:
known for A100, H100 and H200, else --peak-tflops. of_matrix_rate has in place of
the peak what products of --matrix rows reach in the same process.

With --predict, "predicted" has what Tessera's step takes at least on a device,
by the dry run of the same step.

A contender that needs more memory than there is, or that is not installed, is
left out of the table. --engine passes options such as placements to Tessera.
Tessera's and LibTorch's model is initialized on the device, by --threads
threads; so are the Python peers' but for those whose shards are on the host.

  benchmarks/peers/compare_cuda.py --program build/release/bin/train_gpt2
  benchmarks/peers/compare_cuda.py --program build/release/bin/train_gpt2 \\
      tessera fsdp2-compile single-compile
  benchmarks/peers/compare_cuda.py --program build/release/bin/train_gpt2 \\
      --layers 32 --width 4096 --heads 32 --batch 4 --rounds 1 \\
      --engine "placement.optimizer=host" \\
      tessera fsdp2-offload deepspeed-offload

With --device cpu a small model goes the same ways, with --compiler aot_eager
without a C++ compiler.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
OWN = ["tessera", "plain"]  # of --program
CONTENDERS = [*OWN, "single", "fsdp2"]
FIELDS = ["step_ms", "tokens_per_s", "mfu", "of_matrix_rate",
          "peak_device_mib", "first_loss", "last_loss"]
MFU_FORMULA = ("tokens_per_s x (6 x (parameters - positions) + 12 x layers x "
               "width x sequence) / peak")
PEAK_TFLOPS = {"A100": 312, "H100": 989, "H200": 989}
SIZES = {"layers": 24, "width": 2048, "heads": 16, "vocabulary": 50257,
         "batch": 8, "sequence": 1024, "steps": 10, "warmup": 5,
         "matrix": 8192}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", default=CONTENDERS)
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peak-tflops", type=float)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    for name, value in SIZES.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int,
                        default=min(16, os.cpu_count()))
    parser.add_argument("--compiler", default="inductor",
                        help="the backend of torch.compile")
    parser.add_argument("--predict", metavar="DEVICE",
                        help="train_gpt2's predict=, of Tessera's step")
    parser.add_argument("--engine", default="",
                        help="additional key=value arguments for train_gpt2")
    return parser.parse_args()


def device_peak(options):
    """Operations per second; None on the CPU, of which none is known."""
    if options.peak_tflops:
        return options.peak_tflops * 1e12
    if options.device == "cpu":
        return None
    name = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        check=True, capture_output=True, text=True).stdout
    for known, tflops in PEAK_TFLOPS.items():
        if known in name:
            return tflops * 1e12
    sys.exit(f"compare_cuda: the peak rate of {name.strip()} is unknown; "
             "pass --peak-tflops.")


def command(contender, options):
    settings = {key: getattr(options, key)
                for key in (*SIZES, "dtype", "device")}
    if contender not in OWN:
        line = [options.python, str(HERE / "gpt2_cuda.py"), "--mode", contender,
                "--compiler", options.compiler]
        for key, value in settings.items():
            line += ["--" + key, str(value)]
        return line
    line = [options.program, "mode=" + contender, "lazy=1",
            f"threads={options.threads}"]
    line += [f"{key}={value}" for key, value in settings.items()]
    if contender == "tessera":
        line += [f"predict={options.predict}"] * bool(options.predict)
        line += options.engine.split()
    return line


def run(contender, options, peak):
    """@return what the contender printed, with "mfu"; None if it failed."""
    done = subprocess.run(
        command(contender, options), capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{contender} failed:\n{done.stderr[-4000:]}", flush=True)
        return None
    result = json.loads(
        [text for text in done.stdout.splitlines() if text[:1] == "{"][-1])
    if "predicted" in result:
        print(done.stderr, end="")  # its operators
    if peak:
        result["mfu"] = (result["tokens_per_s"] *
                         result["operations_per_token"] / peak)
        result["mfu_formula"] = MFU_FORMULA
        result["peak_tflops"] = peak / 1e12
    print(json.dumps(result), flush=True)
    return result


def main():
    options = parse()
    peak = device_peak(options)
    rounds = [{name: run(name, options, peak) for name in options.contenders}
              for _ in range(options.rounds)]
    ran = [name for name in options.contenders
           if all(results[name] for results in rounds)]
    for name in ran:
        print(f"{name}:")
        for field in FIELDS:
            if not all(results[name].get(field) for results in rounds):
                continue  # none on the CPU
            values = [results[name][field] for results in rounds]
            ratios = [results[ran[0]][field] / results[name][field]
                      for results in rounds]
            print(f"  {field:16} {statistics.median(values):12.4g} "
                  f"({min(values):.4g} to {max(values):.4g}); "
                  f"{ran[0]} / {name} = "
                  f"{statistics.median(ratios):.3f}")
    sys.exit(0 if len(ran) == len(options.contenders) else 1)


main()

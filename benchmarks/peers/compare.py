#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 124M with Tessera and with its peers, in turns.

Each round runs every contender once, one after the other, so that all see the
same machine. The table has the median over the rounds (and the lowest and
highest) of what the slowest or largest rank of a run reports, and the ratios
are medians over rounds of ratios within a round.

  benchmarks/peers/compare.py --rounds 3 tessera fsdp2
  benchmarks/peers/compare.py --ranks 1 tessera plain

Contenders: tessera, tessera-gloo (the same over TCP), plain (LibTorch alone,
one rank), fsdp2, ddp, single (PyTorch alone, one rank). The PyTorch ones need
a Python with torch and transformers: --python. Those of train_gpt2 take its
arguments after a plus sign: tessera+matmul=onednn+helpers=1.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIELDS = ["step_ms", "min_ms", "user_ms", "sys_ms", "peak_rss_mib",
          "minor_faults"]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*",
                        default=["tessera", "fsdp2"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--program", default=str(
        ROOT / "build/release/bin/train_gpt2"))
    parser.add_argument("--python", default=sys.executable)
    return parser.parse_args()


def command(contender, options):
    common = {"steps": options.steps, "warmup": options.warmup,
              "layers": options.layers}
    if contender in ("fsdp2", "ddp", "single"):
        line = [options.python, str(HERE / "fsdp2_gpt2.py"),
                "--mode", contender]
        for key, value in common.items():
            line += ["--" + key, str(value)]
        return line
    name, *extra = contender.split("+")
    mode = "plain" if name == "plain" else "tessera"
    return ([options.program, "mode=" + mode]
            + [f"{key}={value}" for key, value in common.items()] + extra)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(contender, options):
    """One run: the worst of its ranks, by field."""
    name = contender.split("+")[0]
    alone = name in ("plain", "single")
    ranks = 1 if alone else options.ranks
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if name == "tessera-gloo":
        environment["TESSERA_TRANSPORT"] = "gloo"
    if not alone:
        environment.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(free_port()))
    processes = []
    for rank in range(ranks):
        own = dict(environment)
        if not alone:
            own.update(RANK=str(rank), LOCAL_RANK=str(rank))
        processes.append(subprocess.Popen(
            command(contender, options), env=own, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    results = []
    for process in processes:
        out, err = process.communicate()
        if process.returncode != 0:
            sys.exit(f"{contender} failed:\n{err}")
        lines = [line for line in out.splitlines() if line.startswith("{")]
        results.append(json.loads(lines[-1]))
    worst = {field: max(result[field] for result in results)
             for field in FIELDS}
    worst["last_loss"] = [round(result["last_loss"], 4) for result in results]
    return worst


def spread(values):
    return (f"{statistics.median(values):10.0f}"
            f" ({min(values):.0f}-{max(values):.0f})")


def main():
    options = parse()
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for contender in options.contenders:
            rounds[-1][contender] = run(contender, options)
            print(f"round {number + 1} {contender}:",
                  json.dumps(rounds[-1][contender]), flush=True)
    print()
    for contender in options.contenders:
        print(contender)
        for field in FIELDS:
            values = [each[contender][field] for each in rounds]
            print(f"  {field:14}{spread(values)}")
    last = options.contenders[-1]
    for contender in options.contenders[:-1]:
        for field in ("step_ms", "peak_rss_mib"):
            ratios = [each[contender][field] / each[last][field]
                      for each in rounds]
            print(f"{field} of {contender} / {last}: "
                  f"{statistics.median(ratios):.3f} "
                  f"({min(ratios):.3f}-{max(ratios):.3f})")


main()

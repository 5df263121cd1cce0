#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of transformers under Tessera, FSDP2 and DeepSpeed ZeRO-3, from Python.

    python_gpt2.py [--modes tessera fsdp2 deepspeed] [--rounds 3]

Starts each mode in turn on --ranks CPU ranks over one host, several times, and
prints medians of step times and of peak resident memory, and their ratios to
FSDP2's. Needs torch, transformers, the package `tessera` and, for its mode,
deepspeed. `tessera` multiplies matrices by torch's own library, `tessera-auto`
by oneDNN where MKL does not use AVX-512; `-lazy` constructs the model without
memory, as DeepSpeed's zero.Init and FSDP2's meta device do, and `-lean` updates
parameters in backward, as soon as their gradients are there.
"""
import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

MODES = ("tessera", "tessera-lazy", "tessera-lazy-lean", "tessera-auto",
         "tessera-auto-lazy", "tessera-auto-lazy-lean", "fsdp2", "deepspeed")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", choices=MODES, nargs="+", default=MODES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    return parser.parse_args()


def tessera_step(given):
    import contextlib

    import tessera
    from fsdp2_gpt2 import new_gpt2
    auto = "auto" in given.mode
    tessera.init(device="cpu", cpu_matmul="auto" if auto else "libtorch")
    construct = tessera.lazy(seed=0) if "lazy" in given.mode else \
        contextlib.nullcontext()
    with construct:
        model = new_gpt2(given.layers)
    engine = tessera.wrap(
        model, zero_stage=3, log_memory=False,
        update_in_backward="lean" in given.mode,
        optimizer={"type": "adamw", "lr": 1e-4, "weight_decay": 0.01})

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss
    return step


def fsdp2_step(given):
    import torch.distributed as dist
    from fsdp2_gpt2 import new_gpt2, new_step, shard_by_fsdp2
    dist.init_process_group("gloo")
    return new_step(shard_by_fsdp2(new_gpt2(given.layers)))


def deepspeed_step(given):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from fsdp2_gpt2 import new_gpt2
    deepspeed.init_distributed(dist_backend="gloo")
    model = new_gpt2(given.layers)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=DeepSpeedCPUAdam(
            model.parameters(), lr=1e-4, weight_decay=0.01),
        config={"train_micro_batch_size_per_gpu": given.batch,
                "steps_per_print": 10**9,
                "zero_optimization": {"stage": 3, "overlap_comm": False}})

    def step(ids):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss
    return step


def run_rank(given):
    import torch
    from fsdp2_gpt2 import new_batch
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    step = {"fsdp2": fsdp2_step, "deepspeed": deepspeed_step}.get(
        given.mode, tessera_step)(given)
    ids = new_batch(given.batch, given.sequence, rank)
    times, losses = [], []
    for i in range(given.warmup + given.steps):
        begin = time.perf_counter()
        losses.append(step(ids).item())
        if i >= given.warmup:
            times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"step_ms": statistics.median(times) * 1e3,
                      "rss_mib": peak / 1024, "losses": losses}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # not what the libraries do at exit


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def run_mode(given, mode):
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()), WORLD_SIZE=str(given.ranks),
        LOCAL_WORLD_SIZE=str(given.ranks), TOKENIZERS_PARALLELISM="false")
    ranks = [subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--mode", mode],
        env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(given.ranks)]
    results = []
    for process in ranks:
        out, err = process.communicate()
        lines = [line for line in out.splitlines() if line.startswith('{"step')]
        if process.returncode != 0 or not lines:
            sys.exit(f"{mode} failed:\n{out}\n{err}")
        results.append(json.loads(lines[-1]))
    return (max(one["step_ms"] for one in results),
            max(one["rss_mib"] for one in results), results[0]["losses"])


def main():
    given = parse()
    if given.mode:
        run_rank(given)
    found = {mode: [] for mode in given.modes}
    for turn in range(given.rounds):
        for mode in given.modes if turn % 2 == 0 else reversed(given.modes):
            found[mode].append(run_mode(given, mode))
            step, rss, losses = found[mode][-1]
            print(f"{mode}: {step:.0f} ms, {rss:.0f} MiB, losses "
                  f"{losses[0]:.5f} to {losses[-1]:.5f}", flush=True)
    medians = {mode: [statistics.median(column) for column in zip(
        *[run[:2] for run in runs])] for mode, runs in found.items()}
    base = medians.get("fsdp2")
    print("\n| mode | ms a step | of FSDP2 | peak MiB a rank | of FSDP2 |\n"
          "| --- | --- | --- | --- | --- |")
    for mode, (step, rss) in medians.items():
        ratios = [f"{value / other:.2f}" if base else ""
                  for value, other in zip((step, rss), base or (1, 1))]
        print(f"| {mode} | {step:.0f} | {ratios[0]} | {rss:.0f} | {ratios[1]} |")


if __name__ == "__main__":
    main()

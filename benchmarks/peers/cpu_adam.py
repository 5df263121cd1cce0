#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AdamW on CPU by DeepSpeed and by PyTorch, in pairs, one JSON line per case.

  OMP_NUM_THREADS=2 benchmarks/peers/cpu_adam.py --mi 64 --pairs 15

Needs torch and deepspeed (whose operator is compiled at its first use). Cases:
float32 gradients, and bfloat16 gradients in with bfloat16 weights out, which
takes either peer a pass before and a pass after its step. The figures to hold
them against come from bench_adamw on the same sizes: it runs PyTorch's fused
AdamW too, which is what both have in common.
"""
import argparse
import json
import os
import statistics
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch  # noqa: E402  (after the variable that deepspeed reads)


def make_optimizer(peer, parameter):
    settings = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    if peer == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam([parameter], adamw_mode=True, **settings)
    return torch.optim.AdamW([parameter], fused=True, **settings)


class Contender:
    def __init__(self, peer, numel):
        self.parameter = torch.nn.Parameter(torch.full((numel,), 0.5))
        self.parameter.grad = torch.full((numel,), 0.01)
        self.narrow_grad = torch.full((numel,), 0.01, dtype=torch.bfloat16)
        self.narrow_weights = torch.zeros(numel, dtype=torch.bfloat16)
        self.optimizer = make_optimizer(peer, self.parameter)

    @torch.no_grad()
    def step(self, narrow):
        start = time.perf_counter()
        if narrow:
            self.parameter.grad.copy_(self.narrow_grad)
        self.optimizer.step()
        if narrow:
            self.narrow_weights.copy_(self.parameter)
        return 1e3 * (time.perf_counter() - start)


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(low, 3), round(middle, 3), round(high, 3)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mi", type=int, default=64, help="2^20 parameters")
    arguments.add_argument("--pairs", type=int, default=15)
    options = arguments.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    numel = options.mi << 20
    peers = {name: Contender(name, numel) for name in ("fused", "deepspeed")}
    for narrow in (False, True):
        times = {name: [] for name in peers}
        for pair in range(options.pairs + 2):
            for name, contender in peers.items():
                taken = contender.step(narrow)
                if pair >= 2:
                    times[name].append(taken)
        ratios = [f / d for f, d in zip(times["fused"], times["deepspeed"])]
        print(
            json.dumps(
                dict(
                    mi=options.mi,
                    threads=threads,
                    gradients="bfloat16" if narrow else "float32",
                    fused_ms=quartiles(times["fused"]),
                    deepspeed_ms=quartiles(times["deepspeed"]),
                    fused_over_deepspeed=quartiles(ratios),
                    load=round(os.getloadavg()[0], 1),
                )
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

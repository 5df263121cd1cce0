#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 under PyTorch's FSDP2 or DDP, or alone: the peer of train_gpt2.

Started by compare.py, one process per rank, with RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT set. Each rank prints one line of JSON, with the same fields as
train_gpt2.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["fsdp2", "ddp", "single"],
                        default="fsdp2")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clip", action="store_true")
    return parser.parse_args()


def new_gpt2(layers):
    config = GPT2Config(
        n_layer=layers, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).train()


def shard_by_fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def build(options):
    model = new_gpt2(options.layers)
    if options.mode == "fsdp2":
        return shard_by_fsdp2(model)
    if options.mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True)
    return model


def new_step(model, clip=False):
    """A function of a batch that trains on it and returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss
    return step


def new_batch(batch, sequence, rank):
    return torch.randint(
        0, 50257, (batch, sequence),
        generator=torch.Generator().manual_seed(1000 + rank))


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    if options.mode != "single":
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    step = new_step(build(options), options.clip)
    ids = new_batch(options.batch, options.sequence, rank)
    times, losses, before = [], [], None
    for i in range(options.warmup + options.steps):
        if i == options.warmup:
            before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        losses.append(step(ids).item())
        if i >= options.warmup:
            times.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    per_step = lambda field: (
        (getattr(after, field) - getattr(before, field)) / options.steps)
    print(json.dumps({
        "bench": "gpt2", "peer": options.mode, "rank": rank,
        "step_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "user_ms": per_step("ru_utime") * 1e3,
        "sys_ms": per_step("ru_stime") * 1e3,
        "peak_rss_mib": after.ru_maxrss / 1024,
        "minor_faults": per_step("ru_minflt"),
        "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)
    if options.mode != "single":
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

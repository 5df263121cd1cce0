#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 on one CUDA device under PyTorch alone, its FSDP2, FSDP2 with shards in
the host's memory, or DeepSpeed's ZeRO-3, with optimizer state on the device or
in the host's memory: the peer of `train_gpt2 device=cuda`, with the same layers,
types and update.

Needs torch, and deepspeed for those two. Started by compare_cuda.py; prints one
line of JSON with the same fields as train_gpt2.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
from torch import nn
import torch.distributed as dist
from torch.nn import functional as F

VOCABULARY = 50257


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=[
        "fsdp2", "single", "fsdp2-offload", "deepspeed", "deepspeed-offload"],
                        required=True)
    for name, value in [("layers", 12), ("width", 768), ("heads", 12),
                        ("batch", 2), ("sequence", 256), ("steps", 10),
                        ("warmup", 3)]:
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"],
                        default="float32")
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = [
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, 2)]
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(x.shape))
        hidden = F.gelu(self.mlp_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp_proj(hidden)


class Gpt2(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(max(1024, options.sequence), width)
        self.h = nn.ModuleList(
            [Block(width, options.heads) for _ in range(options.layers)])
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, ids):
        x = self.wte(ids)
        x = x + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def build(options):
    torch.manual_seed(0)
    if options.mode == "single":
        return Gpt2(options).cuda()
    from torch.distributed.fsdp import (
        CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard)
    offloads = options.mode == "fsdp2-offload"
    # Too large for the device: made where it stays.
    model = Gpt2(options) if offloads else Gpt2(options).cuda()
    policy = MixedPrecisionPolicy()
    if options.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shards = CPUOffloadPolicy() if offloads else OffloadPolicy()
    for block in model.h:
        fully_shard(block, mp_policy=policy, offload_policy=shards)
    fully_shard(model, mp_policy=policy, offload_policy=shards)
    return model


class Torch:
    """A step as PyTorch's users write it."""

    def __init__(self, options):
        self.model = build(options)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.autocast = (options.mode == "single" and
                         options.dtype == "bfloat16")

    def step(self, ids):
        with (torch.autocast("cuda", torch.bfloat16) if self.autocast
              else contextlib.nullcontext()):
            loss = self.model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


class DeepSpeed:
    """ZeRO-3 with parameters on the device. With optimizer state there too,
    PyTorch's fused AdamW updates; on the host, DeepSpeed's CPU Adam does."""

    def __init__(self, options):
        import deepspeed
        torch.manual_seed(0)
        offloads = options.mode == "deepspeed-offload"
        config = {
            "train_micro_batch_size_per_gpu": options.batch,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 3},
            "bf16": {"enabled": options.dtype == "bfloat16"}}
        if offloads:
            config["zero_optimization"]["offload_optimizer"] = {
                "device": "cpu", "pin_memory": True}
            config["optimizer"] = {"type": "AdamW", "params": {
                "lr": 1e-4, "weight_decay": 0.01}}
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Gpt2(options)
        self.parameters = sum(p.ds_numel for p in model.parameters())
        adamw = None if offloads else torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        if adamw:
            config["zero_allow_untested_optimizer"] = True
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config,
            optimizer=adamw)

    def step(self, ids):
        loss = self.engine(ids)
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()


def main():
    options = parse()
    torch.cuda.set_device(0)
    if options.mode != "single":
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29631")
        # Shards on the host need a group for the CPU as well.
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    trained = (DeepSpeed if options.mode.startswith("deepspeed")
               else Torch)(options)
    torch.manual_seed(1000)
    ids = torch.randint(
        0, VOCABULARY, (options.batch, options.sequence)).cuda()
    times, losses = [], []
    for i in range(options.warmup + options.steps):
        start = time.perf_counter()
        losses.append(trained.step(ids))
        torch.cuda.synchronize()
        if i >= options.warmup:
            times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(json.dumps({
        "bench": "gpt2", "peer": options.mode, "step_ms": median * 1e3,
        "tokens_per_s": ids.numel() / median, "parameters": trained.parameters,
        "peak_device_mib": torch.cuda.max_memory_allocated() / 2**20,
        "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)
    if options.mode != "single":
        dist.destroy_process_group()


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 on one CUDA device under PyTorch: the peer of `train_gpt2 device=cuda`,
with the same layers, types and update.

single            PyTorch alone, with autocast for bfloat16
single-compile    the same, compiled as a whole
fsdp2             PyTorch's FSDP2, a group for each block
fsdp2-compile     the same with each block and the loss compiled, as torchtitan
                  does by default
fsdp2-offload     FSDP2 with shards in the host's memory
deepspeed         DeepSpeed's ZeRO-3, with optimizer state on the device
deepspeed-offload the same with optimizer state in the host's memory

Needs torch, and deepspeed for those two. Started by compare_cuda.py; prints one
line of JSON with the same fields as train_gpt2. With --device cpu a small model
goes the same ways, over Gloo, except for DeepSpeed's.
"""
import argparse
import contextlib
import functools
import json
import os
import socket
import statistics
import time

import torch
from torch import nn
import torch.distributed as dist
from torch.nn import functional as F

MODES = ["single", "single-compile", "fsdp2", "fsdp2-compile", "fsdp2-offload",
         "deepspeed", "deepspeed-offload"]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parse():
    def positive(text):
        number = int(text)
        if number < 1:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return number

    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    for name, value in [("layers", 12), ("width", 768), ("heads", 12),
                        ("vocabulary", 50257), ("batch", 2), ("sequence", 256),
                        ("steps", 10), ("warmup", 3)]:
        parser.add_argument("--" + name, type=positive, default=value)
    parser.add_argument("--dtype", choices=TYPES, default="float32")
    parser.add_argument("--compiler", default="inductor",
                        help="the backend of torch.compile")
    parser.add_argument("--matrix", type=positive, default=8192,
                        help="rows of the products whose rate is measured")
    options = parser.parse_args()
    if options.width % options.heads:
        parser.error(f"width {options.width} is not a multiple of heads "
                     f"{options.heads}")
    if options.device == "cpu" and options.mode.startswith("deepspeed"):
        parser.error(f"{options.mode} needs --device cuda")
    return options


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


def next_token_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Gpt2(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.wte = nn.Embedding(options.vocabulary, width)
        self.wpe = nn.Embedding(max(1024, options.sequence), width)
        self.h = nn.ModuleList(
            [Block(width, options.heads) for _ in range(options.layers)])
        self.ln_f = nn.LayerNorm(width)
        self.loss = next_token_loss
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, ids):
        x = self.wte(ids)
        x = x + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.loss(F.linear(self.ln_f(x), self.wte.weight), ids)


def build(options):
    """Where it stays: offloaded shards are too large for the device."""
    torch.manual_seed(0)
    offloads = options.mode == "fsdp2-offload"
    with torch.device("cpu" if offloads else options.device):
        model = Gpt2(options)
    compiled = functools.partial(torch.compile, backend=options.compiler)
    if options.mode == "single":
        return model
    if options.mode == "single-compile":
        model.compile(backend=options.compiler)
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard)
    if options.mode == "fsdp2-compile":
        for block in model.h:
            block.compile(backend=options.compiler, fullgraph=True)
        model.loss = compiled(next_token_loss)
    policy = MixedPrecisionPolicy()
    if options.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = functools.partial(
        fully_shard, mesh=init_device_mesh(options.device, (1,)),
        mp_policy=policy,
        offload_policy=CPUOffloadPolicy(pin_memory=options.device == "cuda")
        if offloads else OffloadPolicy())
    for block in model.h:
        shard(block)
    return shard(model)


class Torch:
    """A step as PyTorch's users write it."""

    def __init__(self, options):
        self.device = options.device
        self.model = build(options)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.autocast = (options.mode.startswith("single") and
                         options.dtype == "bfloat16")

    def step(self, ids):
        with (torch.autocast(self.device, torch.bfloat16) if self.autocast
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


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_rate(options):
    """Operations per second of products of random matrices, as train_gpt2
    measures them."""
    matrix = functools.partial(
        torch.randn, options.matrix, options.matrix, device=options.device,
        dtype=TYPES[options.dtype])
    a, b = matrix(), matrix()
    product = a @ b  # the library's first call
    synchronize(options.device)
    start, taken, products = time.perf_counter(), 0, 0
    while taken < 0.3:
        for _ in range(10):
            torch.mm(a, b, out=product)
        synchronize(options.device)
        products += 10
        taken = time.perf_counter() - start
    del a, b, product
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return 2 * options.matrix**3 * products / taken


def operations_per_token(options, parameters):
    """As train_gpt2 counts them: the positions are only looked up."""
    looked_up = max(1024, options.sequence) * options.width
    return (6 * (parameters - looked_up) +
            12 * options.layers * options.width * options.sequence)


def train(options):
    """What is printed."""
    rate = matrix_rate(options)
    trained = (DeepSpeed if options.mode.startswith("deepspeed")
               else Torch)(options)
    torch.manual_seed(1000)
    ids = torch.randint(0, options.vocabulary,
                        (options.batch, options.sequence)).to(options.device)
    times, losses = [], []
    for i in range(options.warmup + options.steps):
        start = time.perf_counter()
        losses.append(trained.step(ids))
        synchronize(options.device)
        if i >= options.warmup:
            times.append(time.perf_counter() - start)
    median = statistics.median(times)
    operations = operations_per_token(options, trained.parameters)
    flops = ids.numel() / median * operations
    on_cuda = options.device == "cuda"
    return {
        "bench": "gpt2", "peer": options.mode, "step_ms": median * 1e3,
        "tokens_per_s": ids.numel() / median, "tflops": flops / 1e12,
        "parameters": trained.parameters, "operations_per_token": operations,
        "peak_device_mib":
            torch.cuda.max_memory_allocated() / 2**20 if on_cuda else 0,
        "first_loss": losses[0], "last_loss": losses[-1], "losses": losses,
        "matrix_tflops": rate / 1e12, "of_matrix_rate": flops / rate}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    options = parse()
    is_group = not options.mode.startswith("single")
    if options.device == "cuda":
        torch.cuda.set_device(0)
    if is_group:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
        # Shards on the host need a group for the CPU as well.
        kinds = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}[options.device]
        dist.init_process_group(kinds, rank=0, world_size=1)
    print(json.dumps(train(options)), flush=True)
    if is_group:
        dist.destroy_process_group()


main()

# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of transformers' models, wrapped and plain.

    architectures_test.py [NAME...]   on each rank of a job

Each architecture is trained for three steps with SGD on batches that differ
between the ranks. The reference is the same module in plain PyTorch, which
computes the batches of all ranks one after the other. Options (ZeRO stage,
recomputation, bfloat16 autocast) take turns over the architectures, with all of
them on a few.
"""
import contextlib
import copy
import itertools
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402

import architectures  # noqa: E402
import tessera  # noqa: E402

STEPS = 3
LR = 0.1
# With every combination; the others get one each.
THOROUGH = ("gpt2", "bert", "t5")
COMBINATIONS = list(itertools.product((3, 2, 1), (False, True), (False, True)))


def autocast(on):
    return torch.autocast("cpu", torch.bfloat16) if on else \
        contextlib.nullcontext()


def prepare(model, recompute):
    if recompute and model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})


def train_plain(model, name, size, bf16):
    """Returns the losses of all ranks by step, and the gradients of step 1."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, first = [], {}
    for step in range(STEPS):
        of_ranks = []
        total = {}
        for rank in range(size):
            optimizer.zero_grad()
            with autocast(bf16):
                loss = architectures.loss_of(
                    model, architectures.make_batch(name, 100 * step + rank),
                    step)
            loss.backward()
            of_ranks.append(loss.item())
            for key, parameter in model.named_parameters():
                if parameter.grad is not None:
                    total[key] = total.get(key, 0) + parameter.grad / size
        for key, parameter in model.named_parameters():
            parameter.grad = total.get(key)
        first = first or {key: value.clone() for key, value in total.items()}
        optimizer.step()
        losses.append(of_ranks)
    return losses, first


def compare(name, world, stage, recompute, bf16):
    plain = architectures.make_model(name)
    model = copy.deepcopy(plain)
    for each in (plain, model):
        prepare(each, recompute)
    engine = tessera.wrap(
        model, zero_stage=stage, optimizer={"type": "sgd", "lr": LR},
        log_memory=False, sharding={"min_group_numel": 1000})
    expected, gradients = train_plain(plain, name, world.size, bf16)
    worst = 0.0
    for step in range(STEPS):
        with autocast(bf16):
            loss = architectures.loss_of(
                model, architectures.make_batch(name, 100 * step + world.rank),
                step)
        engine.backward(loss)
        reference = expected[step][world.rank]
        # Gradients of bfloat16 layers are rounded to 8 bits.
        tolerance = (2e-2 if step else 1e-3) if bf16 else 2e-5
        error = abs(loss.item() - reference) / max(1, abs(reference))
        assert error <= tolerance, (
            f"step {step}: loss {loss.item()} instead of {reference}")
        if step == 0:
            for key, parameter in model.named_parameters():
                got = engine.grad(parameter)
                want = gradients.get(key)
                if want is None or got is None:
                    assert want is None or not want.any(), f"{key}: no gradient"
                    assert got is None or not got.any(), f"{key}: a gradient"
                    continue
                scale = want.abs().max().item()
                off = (got - want).abs().max().item()
                limit = (5e-2 if bf16 else 2e-4) * scale + 1e-7
                assert off <= limit, (
                    f"gradient of {key} is off by {off} of {scale}")
                worst = max(worst, off / (scale + 1e-12))
        engine.step()
    statistics = engine.statistics
    return worst, statistics


def main():
    torch.set_num_threads(1)
    world = tessera.init(device="cpu", cpu_matmul="libtorch")
    names = sys.argv[1:] or list(architectures.ARCHITECTURES)
    failed = []
    for index, name in enumerate(names):
        combinations = COMBINATIONS if name in THOROUGH else \
            [COMBINATIONS[index % len(COMBINATIONS)]]
        for stage, recompute, bf16 in combinations:
            begin = time.monotonic()
            what = (f"{name}: ZeRO-{stage}{', recomputed' * recompute}"
                    f"{', bfloat16' * bf16}")
            try:
                worst, counts = compare(name, world, stage, recompute, bf16)
            except Exception as error:  # every rank fails alike, or the job ends
                failed.append(what)
                print(f"FAILED {what}: {type(error).__name__}: {error}",
                      flush=True)
                continue
            if world.rank == 0:
                print(f"ok {what}: gradients within {worst:.1e}, "
                      f"{counts['on_demand_unshards']} unplanned gathers, "
                      f"{time.monotonic() - begin:.1f} s", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: " + "; ".join(failed))
    if world.rank == 0:
        print(f"{len(names)} architectures on {world.size} ranks")


if __name__ == "__main__":
    main()

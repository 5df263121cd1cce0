# SPDX-License-Identifier: Apache-2.0
"""Plans of training steps, against what LibTorch's allocator counts."""
import json
import os
import pathlib
import subprocess
import sys

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera
from tessera import _C
from ranks import (
    SMALL, ids_of, loss_of, main, make_net, raises)

ADAMW = {"type": "adamw", "lr": 0.01}


def gpt2(checkpointing=False):
    config = GPT2Config(
        vocab_size=2000, n_positions=256, n_embd=256, n_layer=4, n_head=4,
        use_cache=False, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(config).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def gpt2_batch(rows=4):
    ids = torch.randint(
        0, 2000, (rows, 128), generator=torch.Generator().manual_seed(3))
    return {"input_ids": ids, "labels": ids}


def measured_peak(make, batch, options, accumulate, clips):
    """The steps that plan() takes, with numbers."""
    with tessera.lazy(seed=0):
        model = make()
    before = _C.cpu_bytes_live()
    engine = tessera.wrap(model, **options)
    _C.reset_cpu_bytes_peak()
    for _ in range(2):
        for _ in range(accumulate):
            loss = model(**batch).loss
            engine.backward(loss if accumulate == 1 else loss / accumulate)
            del loss
        if clips:
            engine.clip_grad_norm(1.0)
        engine.step()
    return _C.cpu_bytes_peak() - before, engine.memory_plan


def check_peak(world, make=gpt2, accumulate=1, clips=False, **options):
    options = dict(options, optimizer=ADAMW, log_memory=False)
    batch = gpt2_batch()
    planned = tessera.plan(
        make(), None, batch, world_size=world.size, rank=world.rank,
        device="cpu", accumulate=accumulate, clips_gradients=clips, **options)
    measured, memory_plan = measured_peak(
        make, batch, options, accumulate, clips)
    # All is counted: what differs is the allocator's header of each block.
    assert abs(planned.peak_bytes / measured - 1) < 0.01, (
        options, planned.peak_bytes, measured)
    # As wrap() plans for the same rank.
    assert planned.memory == memory_plan, (planned.memory, memory_plan)
    return planned


def peaks(world):
    found = {stage: check_peak(world, zero_stage=stage) for stage in (1, 3)}
    if world.size > 1:
        assert found[3].peak_bytes < found[1].peak_bytes
    whole = check_peak(world, accumulate=2, clips=True,
                       precision={"parameters": "bfloat16"})
    assert whole.peak.total == whole.peak_bytes
    assert whole.peak.activations + sum(whole.peak.engine.values()) == \
        whole.peak_bytes
    assert max(moment.total for moment in whole.timeline) <= whole.peak_bytes
    assert found[3].activations_after_forward > 0
    # 6 for each token and weight of a product; attention has more.
    weights = 4 * 12 * 256 * 256 + 2000 * 256
    assert 1 < found[3].flops / (6 * weights * 4 * 128) < 1.2
    if world.size > 1:
        assert any(work.kind == "all_gather" and work.bytes > 0
                   for work in found[3].collectives)


def peaks_elsewhere(world):
    recomputed = check_peak(world, lambda: gpt2(checkpointing=True))
    kept = check_peak(world)
    assert recomputed.activations_after_forward < \
        kept.activations_after_forward / 2
    check_peak(world, placement={"optimizer": "host"})


def other_jobs(world):
    """Of any size, without its ranks, and on CUDA without a device."""
    one, many = (
        tessera.plan(gpt2(), {"sharding": {"zero_stage": 3}}, gpt2_batch(),
                     world_size=size, device="cuda", optimizer=ADAMW)
        for size in (1, 64))
    assert many.memory["device"]["parameters"] < \
        one.memory["device"]["parameters"] / 32
    with tessera.lazy():
        model = gpt2()
    lazy = tessera.plan(model, {"sharding": {"zero_stage": 3}}, gpt2_batch(),
                        world_size=64, device="cuda", optimizer=ADAMW)
    assert lazy.peak_bytes == many.peak_bytes
    assert lazy.memory == many.memory


class Reading(torch.nn.Module):
    """Reads what it has computed, and a number of the batch, into the loss."""

    def __init__(self, read):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.read = read

    def forward(self, x, n):
        out = self.layer(x)
        self.seen = self.read(out.detach()[0]), self.read(n)
        return out.sum()


def says_what_is_read(world):
    batch = (torch.ones(2, 4), torch.tensor([3.0, 4.0]))
    kept = torch.Tensor.numpy, torch.Tensor.tolist
    for read in (lambda t: t.tolist()[0], lambda t: float(t.numpy()[0]),
                 lambda t: float(t.t().numpy()[0]),
                 lambda t: float(numpy.asarray(t)[0]), lambda t: t[0].item()):
        model = Reading(read)
        found = tessera.plan(model, None, batch, device="cpu", **SMALL)
        # What it has computed is zero, and told; the batch has its values.
        assert model.seen == (0.0, 3.0), model.seen
        assert len(found.assumptions) == 1, found.assumptions
        assert "read zero" in found.assumptions[0], found.assumptions
    model = Reading(lambda t: 0.0)
    assert not tessera.plan(
        model, None, batch, device="cpu", **SMALL).assumptions
    assert (torch.Tensor.numpy, torch.Tensor.tolist) == kept


def leaves_the_model(world):
    plain, model = make_net(), make_net()
    ids = ids_of(0, world.rank)
    for one in (plain, model):
        loss_of(one, ids).backward()
    seen = model.seen
    drawn = torch.random.get_rng_state()
    tessera.plan(model, None, ids, loss=lambda output: output.mean(), **SMALL)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert model.seen is seen and model.seen == plain.seen
    for got, want in zip(model.parameters(), plain.parameters()):
        assert torch.equal(got, want) and torch.equal(got.grad, want.grad)
    assert torch.equal(loss_of(model, ids), loss_of(plain, ids))


def refuses(world):
    ids = ids_of(0, world.rank)
    raises(lambda: tessera.plan(make_net(), None, ids), "Tensor", "loss=")
    raises(lambda: tessera.plan(make_net(), None, ids, loss=lambda _: 3),
           "int", "tensor")
    raises(lambda: tessera.plan(make_net(), {"sharing": {}}, ids),
           "tessera.plan(config)", "sharing")
    raises(lambda: tessera.plan(make_net(), None, ids, device="xla"), "cpu")
    raises(lambda: tessera.plan("net", None, ids), "torch.nn.Module")
    raises(lambda: tessera.plan(
        make_net(), None, ids, loss=lambda _: 1 / 0), "division")
    raises(lambda: tessera.plan(
        make_net(), None, ids, loss=lambda output: output[output > 0].sum()),
        "plan_test.py:", "output[output > 0]", "has shapes only", "torch.where")
    model = make_net()
    engine = tessera.wrap(model, **SMALL)
    raises(lambda: tessera.plan(model, None, ids), "before wrap()")
    engine.unwrap()


def searches(world):
    """What a search picks fits under its limit, with numbers."""
    def batch_of(rows):
        return gpt2_batch(rows)

    options = {"optimizer": ADAMW, "log_memory": False}
    if world.size > 1:
        return
    arguments = {"device": "cpu", "margin": 0, "batch_size": 4}
    given = tessera.plan(gpt2(), options, batch_of, device_memory="1TiB",
                         **arguments)
    assert given.best.fits and given.best.batch_size == 4
    assert given.limit_bytes == 2**40 and not given.changes
    most = given.picks[0].peak_bytes
    assert given.picks[0].step.peak_bytes == most
    found = set()
    for part in (1.0, 0.85, 0.7):
        model = gpt2()
        limit = int(part * most)
        plan = tessera.plan(model, options, batch_of, device_memory=limit,
                            **arguments)
        best = plan.best
        assert best and best.peak_bytes <= limit, str(plan)
        assert best.batch_size * best.accumulate == 4
        assert not model.is_gradient_checkpointing
        measured, _ = measured_peak(
            lambda: gpt2(checkpointing=best.recomputed_layers > 0),
            batch_of(best.batch_size), best.options, best.accumulate, False)
        assert abs(best.peak_bytes / measured - 1) < 0.01, (best, measured)
        assert measured < 1.01 * limit
        found.add((best.batch_size, best.recomputed_layers, best.changed))
    assert len(found) > 1, found
    # Rows stay as they are where a batch is given, and layers as a function has
    # them recomputed.
    counts = []
    fixed = tessera.plan(
        gpt2(), options, gpt2_batch(), device_memory=int(0.85 * most),
        layers=4, recompute=counts.append, device="cpu")
    assert {pick.batch_size for pick in fixed.picks} == {4}
    assert max(counts) == 4 and counts[-1] == 0
    keeps_checkpointing(options, most)
    # null is a section without keys.
    empty = tessera.plan(
        gpt2(), dict(options, memory=None, sharding=None, placement=None,
                     offload=None), batch_of, device_memory=int(0.7 * most),
        **arguments)
    assert empty.best

    # The host where a device is too small, and its size where there is none.
    small = {"device": "a100", "device_memory": "40MiB", "reserve": 0}
    none = tessera.plan(gpt2(), options, batch_of, **small)
    assert none.best is None and none.nearest.problem
    size = next(change for change in none.changes
                if change.startswith("host_memory="))
    assert size.endswith("MiB"), str(none)  # less than a GiB
    assert "nothing fits" in str(none) and size in str(none)
    assert "a device has 38.80 MiB" in str(none), str(none)
    host = tessera.plan(gpt2(), options, batch_of, host_memory="1GiB", **small)
    assert host.best.host_bytes > 0 and host.best.changed
    for change in host.best.changed:
        *sections, key = change.split("=")[0].split(".")
        inner = host.best.options
        for section in sections:
            inner = inner[section]
        assert key in inner
    assert host.best.options["optimizer"] == ADAMW
    again = tessera.plan(
        gpt2(), host.best.options, batch_of(host.best.batch_size),
        device="cuda", accumulate=min(2, host.best.accumulate))
    assert host.best.recomputed_layers or \
        again.peak_bytes == host.best.peak_bytes


def keeps_checkpointing(options, most):
    """The model's own, of some layers and with another function."""
    model = gpt2(checkpointing=True)
    model.transformer.h[1].gradient_checkpointing = False

    def function(*args, **kwargs):
        return torch.utils.checkpoint.checkpoint(
            *args, use_reentrant=False, **kwargs)

    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module._gradient_checkpointing_func = function
    before = checkpointing_of(model)
    found = tessera.plan(model, options, gpt2_batch(), device="cpu", margin=0,
                         device_memory=2 * most)
    assert {pick.recomputed_layers for pick in found.picks} == {0, 1}
    assert checkpointing_of(model) == before
    model = gpt2()
    before = checkpointing_of(model)
    tessera.plan(model, options, gpt2_batch(), device="cpu", margin=0,
                 device_memory=int(0.7 * most))
    assert checkpointing_of(model) == before


def checkpointing_of(model):
    return [(name, key, vars(module)[key])
            for name, module in model.named_modules()
            for key in ("gradient_checkpointing",
                        "_gradient_checkpointing_func") if key in vars(module)]


class ConvNet(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = norm
        self.head = torch.nn.Linear(8, 10)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).mean((2, 3)))


def plans_given_batches(world):
    """As they are, of any kind; and rows that models with statistics of
    micro-batches keep."""
    def plan(batch, norm=torch.nn.Identity(), **arguments):
        return tessera.plan(
            ConvNet(norm), {"optimizer": ADAMW}, batch, device="cpu",
            loss=lambda output: output.square().mean(),
            device_memory="1GiB", **arguments)

    images = torch.zeros(4, 3, 16, 16)
    peaks = {plan(batch, **arguments).best.peak_bytes
             for batch in (images, {"images": images}, (images,))
             for arguments in ({}, {"batch_size": 4})}
    assert len(peaks) == 1, peaks
    assert plan(images).best.batch_size == 4
    for batch in (images, {"images": images}, (images,)):
        raises(lambda given=batch: plan(given, batch_size=8),
               "batch_size is 8", "4 rows", "a function")

    def make(rows):
        return torch.zeros(rows, 3, 16, 16)

    def rows_of(norm):
        found = plan(make, norm, batch_size=8)
        return {pick.batch_size for pick in found.picks}

    assert rows_of(torch.nn.BatchNorm2d(8)) == {8}
    for norm in (torch.nn.Identity(), torch.nn.BatchNorm2d(8).eval()):
        assert len(rows_of(norm)) > 1, norm


def refuses_searches(world):
    def plan(**arguments):
        return tessera.plan(gpt2(), None, gpt2_batch, **arguments)

    raises(lambda: plan(host_memory="1GiB"), "device_memory")
    raises(lambda: plan(device_memory="much"), "device_memory", "much")
    raises(lambda: plan(device_memory=0), "device_memory")
    raises(lambda: plan(device_memory="1GiB", device="h1000"), "h1000")
    raises(lambda: plan(device_memory="1GiB", device="cuda"), "cuda", "h100")
    raises(lambda: plan(device_mem="1GiB", batch_size=2), "'device_memory'")
    raises(lambda: plan(device_memory="1GiB", layers=3), "recompute")
    raises(lambda: plan(device_memory="1GiB", rank=1, world_size=2), "rank")
    raises(lambda: plan(device_memory="1GiB", steps=3), "steps")
    raises(lambda: plan(device_memory="1GiB", batch_size=0), "batch_size is 0")
    raises(lambda: plan(device_memory="1GiB", accumulate=0), "accumulate 0")
    raises(lambda: plan(device_memory="1GiB", nvme_memory="1GiB", device="a100"),
           "(host_memory)")

    # What the forward refuses is left out; as it is given, it is an error.
    def batch_of(rows):
        if rows != 4:
            raise ValueError("no such rows")
        return gpt2_batch(rows)

    def search(rows):
        return tessera.plan(gpt2(), {"optimizer": ADAMW}, batch_of,
                            device="cpu", device_memory="1TiB", batch_size=rows)

    found = search(4)
    assert found.best.batch_size == 4
    assert any("no such rows" in pick.problem for pick in found.picks)
    raises(lambda: search(8), "no such rows")
    raises(lambda: plan(device_memory="1GiB", parallel={"tensor": 2}),
           "parallel", "device_memory")


class WideLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(128, 512)
        self.down = torch.nn.Linear(512, 128)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


UNJOINED = """
import torch, tessera
model = torch.nn.Linear(256, 4000, bias=False)
rows = torch.zeros(512, 256)
labels = torch.zeros(512, dtype=torch.long)
def peak():
    return tessera.plan(
        model, {"optimizer": {"type": "adamw"}}, rows, device="cpu",
        loss=lambda found: torch.nn.functional.cross_entropy(found, labels)
    ).peak_bytes
first = peak()
tessera.init()
print(first, peak())
"""


def counts_the_operators_of_the_run(world):
    """Those that wrap() will choose, before it has."""
    alone = {name: value for name, value in os.environ.items()
             if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    found = subprocess.run(
        [sys.executable, "-c", UNJOINED], env=alone, capture_output=True,
        text=True, check=True)
    before, after = found.stdout.split()[-2:]
    assert before == after, (before, after)


class WideNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(WideLayer() for _ in range(6)))

    def forward(self, rows):
        return self.blocks(torch.ones(rows * 16, 128)).square().mean()


def finds_what_programs_find(world):
    """The file is C++'s too: module_plan_test.cpp."""
    file = pathlib.Path(__file__).parents[1] / "planner/search/net_plans.json"
    for expected in json.loads(file.read_text()):
        best = tessera.plan(
            WideNet(), {"log_memory": False}, lambda rows: {"rows": rows},
            batch_size=32, device="a100", reserve=0, margin=0,
            device_memory=expected["device_mib"] << 20, host_memory="64MiB").best
        found = {
            "device_mib": expected["device_mib"],
            "batch_size": best.batch_size, "accumulate": best.accumulate,
            "changed": list(best.changed), "device_bytes": best.peak_bytes,
            "host_bytes": best.host_bytes,
            "step_us": round(best.step_seconds * 1e6, 3)}
        assert found == expected, (found, expected)


if __name__ == "__main__":
    _C.count_cpu_bytes()
    main([peaks, peaks_elsewhere, other_jobs, says_what_is_read,
          leaves_the_model, refuses, searches, finds_what_programs_find,
          counts_the_operators_of_the_run,
          plans_given_batches, refuses_searches])

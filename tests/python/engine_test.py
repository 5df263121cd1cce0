# SPDX-License-Identifier: Apache-2.0
"""The engine from Python, beside plain PyTorch."""
import collections
import copy
import fractions
import math
import os
import shutil
import tempfile

import numpy
import torch

import tessera
from ranks import (
    SMALL, ids_of, loss_of, main, make_net, raises, shared_folder, train,
    train_plain)

ADAMW = {"type": "adamw", "lr": 0.01, "weight_decay": 0.1}


def plain_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def close(got, want, tolerance, what):
    off = (got - want).abs().max().item()
    assert off <= tolerance, f"{what} is off by {off}"


def check_parity(world, clip=0.5, **options):
    """Losses and weights as those of plain PyTorch over four steps.

    Weights move by 0.04. The sum of three gradients has another order than in
    plain PyTorch, and Adam divides by its own size.
    """
    tolerance = 2e-6 if world.size < 3 else 2e-5
    plain = make_net()
    model = copy.deepcopy(plain)
    start = copy.deepcopy(plain.state_dict())
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL, **options)
    expected = train_plain(plain, plain_adamw(plain), 4, world.size, clip)
    losses = train(engine, 4, world.rank, clip)
    for step, loss in enumerate(losses):
        reference = expected[step][world.rank]
        assert abs(loss - reference) <= tolerance * 10, (step, loss, reference)
    got = engine.state_dict()
    assert bool(got) == (world.rank == 0)
    for name, value in got.items():
        if name != "seen":
            moved = (plain.state_dict()[name] - start[name]).abs().max()
            assert moved > 1e-3, f"{name} did not move"
            close(value, plain.state_dict()[name], tolerance, name)
    return engine


def zero_stages(world):
    for stage in (1, 2, 3):
        check_parity(world, zero_stage=stage)


def tiers_and_budgets(world):
    folder = os.path.join(shared_folder(), f"nvme{world.rank}")
    os.makedirs(folder, exist_ok=True)
    check_parity(world, placement={"optimizer": "host"})
    check_parity(
        world, placement={"parameters": "host", "optimizer": "nvme"},
        memory={"nvme_path": folder, "nvme_bytes": "1GiB"})
    check_parity(world, placement={"activations": "host"})
    engine = check_parity(world, memory={"device_bytes": "1MiB"})
    assert "device" in engine.memory_plan
    assert engine.memory["device"]["parameters"] > 0


def bfloat16(world):
    # Weights have 8 bits; the master weights are float32.
    model = make_net()
    engine = tessera.wrap(
        model, optimizer=ADAMW, precision={"parameters": "bfloat16"}, **SMALL)
    before = loss_of(model, ids_of(0, 0)).item()
    # Computed in bfloat16, and master weights are float32: 2 + 4 + 8 bytes.
    bits = loss_of(model, ids_of(0, 0)).item()
    assert bits != loss_of(make_net(), ids_of(0, 0)).item()
    plan = engine.memory_plan["device"]
    assert plan["optimizer state"] > 5 * plan["parameters"], plan
    losses = train(engine, 10, world.rank)
    assert losses[-1] < before


def accumulates(world):
    plain = make_net()
    model = copy.deepcopy(plain)
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    optimizer = plain_adamw(plain)
    for micro in range(3):
        for rank in range(world.size):
            (loss_of(plain, ids_of(micro, rank)) / world.size / 3).backward()
        engine.backward(loss_of(model, ids_of(micro, world.rank)) / 3)
    close(engine.grad(model.blocks[1].up.weight),
          plain.blocks[1].up.weight.grad, 1e-6, "the gradient")
    norm = engine.grad_norm()
    want = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9).item()
    assert abs(norm - want) <= 1e-5 * want, (norm, want)
    optimizer.step()
    engine.step()
    with engine.gather():
        close(model.head.weight, plain.head.weight, 1e-6, "the head")


def gathers(world):
    model = make_net()
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    with torch.no_grad(), engine.gather(model.blocks[0], writable=True):
        model.blocks[0].up.weight.fill_(0.25)
    with engine.gather(model.blocks[0].up.weight):
        assert (model.blocks[0].up.weight == 0.25).all()
    with engine.gather():
        twin = copy.deepcopy(model)
    assert torch.equal(twin(ids_of(0, 0)), model(ids_of(0, 0)))
    raises(lambda: write_other_values(engine, world),
           "'blocks.1.down.bias' and 1 more", "load_weights()"
           ) if world.size > 1 else write_other_values(engine, world)
    # The copy is a plain module.
    copy.deepcopy(twin).blocks[0].up.weight.data.zero_()
    # Ranks may differ in what the engine does not have.
    model = make_net()
    engine = tessera.wrap(model, optimizer=ADAMW, log_memory=False, sharding={
        "modules": [{"path": "blocks\\.1", "ignored": True}]})
    with torch.no_grad(), engine.gather(writable=True):
        model.blocks[1].up.weight.fill_(world.rank)
        model.head.bias.fill_(0.5)


def write_other_values(engine, world):
    model = engine.module
    with torch.no_grad(), engine.gather(
            model.blocks[1], model.head, writable=True):
        model.head.weight.fill_(2.0)
        if world.rank == 0:  # as with modifier_rank=0 of DeepSpeed
            model.blocks[1].up.weight.copy_(model.blocks[1].up.weight.flip(0))
            model.blocks[1].down.bias[-1] += 1


def stderr_of(what):
    """What the engine's library writes there."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            what()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode()


def averages(world):
    """ema() beside torch's AveragedModel."""
    plain = make_net()
    average = torch.optim.swa_utils.AveragedModel(
        plain, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.75))
    model = copy.deepcopy(plain)
    engine = tessera.wrap(
        model, optimizer={**ADAMW, "ema_decay": 0.75}, **SMALL)
    optimizer = plain_adamw(plain)
    for step in range(4):
        train_plain(plain, optimizer, 1, world.size, first=step)
        average.update_parameters(plain)  # begins with the first step's
        train(engine, 1, world.rank, first=step)
    before = engine.state_dict()
    ids = ids_of(9, 0)
    with engine.ema(), torch.no_grad():
        close(model(ids), average.module(ids), 1e-4, "forward")
        assert not torch.allclose(model(ids), plain(ids), atol=1e-2)
        raises(engine.step, "engine.step", "engine.ema()")
        for parameters in ((), (model.head.bias,)):
            raises(lambda: engine.gather(
                *parameters, writable=True).__enter__(),
                "engine.gather", "engine.ema()")
        state = engine.state_dict()
    for name, value in state.items():
        if name != "seen":
            close(value, average.module.state_dict()[name], 1e-4, name)
    for name, value in engine.state_dict().items():
        assert name == "seen" or torch.equal(value, before[name]), name
    folder = os.path.join(shared_folder(), "averages")
    engine.save(folder)
    engine = tessera.wrap(make_net(), optimizer=ADAMW, **SMALL)
    said = stderr_of(lambda: engine.load(folder))
    assert ("optimizer.ema_decay" in said) == (world.rank == 0), said

    def open_scope():
        with engine.ema():
            pass
    raises(open_scope, "optimizer.ema_decay")


def whole_values(world):
    plain = make_net()
    model = copy.deepcopy(plain)
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    names = []
    for name, value in engine.stream_state_dict():
        names.append(name)
        assert (value is None) == (world.rank != 0)
        if value is not None:
            assert torch.equal(value, plain.state_dict()[name]), name
    assert sorted(names) == sorted(plain.state_dict()), names
    other = make_net(seed=1)
    other.seen = other.seen + 5
    missing, unexpected = engine.load_state_dict(other.state_dict())
    assert not missing and not unexpected
    for name, value in engine.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    state = dict(other.state_dict())
    state["blocks.0.up.wieght"] = state.pop("blocks.0.up.weight")
    raises(lambda: engine.load_state_dict(state),
           "missing: blocks.0.up.weight", "unexpected: blocks.0.up.wieght")
    # What is no tensor counts only where the model has one.
    state = {**other.state_dict(), "epoch": 3}
    assert engine.load_state_dict(state, strict=False) == ([], ["epoch"])
    state = {**other.state_dict(), "head.bias": [0.0] * 50}
    raises(lambda: engine.load_state_dict(state),
           "'head.bias' of type list is not a tensor")
    path = os.path.join(shared_folder(), "weights.safetensors")
    engine.save_weights(path)
    again = make_net(seed=2)
    loaded = tessera.wrap(again, optimizer=ADAMW, **SMALL)
    report = loaded.load_weights(path)
    assert not report.missing and not report.unexpected
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


class Counter:
    """A state with all kinds of values."""

    def __init__(self):
        self.value = {"steps": 0, "best": None, "history": [1.5, (2, "x")],
                      3: "three", "mean": torch.zeros(2),
                      "worst": float("inf"), "least": -float("inf"),
                      "unknown": float("nan"), "bits": 2**127 + 1,
                      "low": -2**63, "high": 2**64 - 1,
                      "of_pairs": {(1, 2.5): "pair", float("inf"): "end"},
                      "milestones": collections.Counter([3, 3, 5]),
                      "numpy": numpy.float32(0.5), "marked": {"__int__": "7"}}

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.value = state


def checkpoints(world):
    """A resumed run has the bits of one that was not interrupted."""
    folder = os.path.join(shared_folder(), "checkpoints")
    sizes = dict(optimizer=ADAMW, **SMALL)
    model = make_net()
    engine = tessera.wrap(model, save_in_background=True, **sizes)
    counter = Counter()
    train(engine, 2, world.rank)
    counter.value["steps"] = 2
    counter.value["mean"] += 7
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    engine.sum_over_ranks(torch.zeros(1))
    pending = engine.save_in_background(folder, [counter])
    after = train(engine, 3, world.rank, first=2)
    path = pending.wait()
    assert pending.is_done() and str(path).startswith(folder)
    resumed_model = make_net(seed=3)
    resumed = tessera.wrap(resumed_model, **sizes)
    restored = Counter()
    assert resumed.load(folder, {"Counter": restored}) == 2
    assert restored.value["steps"] == 2 and restored.value[3] == "three"
    assert restored.value["history"] == [1.5, (2, "x")]
    assert (restored.value["mean"] == 7).all()
    for name in ("worst", "least", "bits", "low", "high", "of_pairs",
                 "milestones", "numpy", "marked"):
        assert restored.value[name] == counter.value[name], name
    assert isinstance(restored.value["milestones"], collections.Counter)
    assert math.isnan(restored.value["unknown"])
    # The buffer that forward assigns anew.
    assert resumed_model.seen == 2 * 18, resumed_model.seen
    assert train(resumed, 3, world.rank, first=2) == after
    raises(lambda: engine.save(folder, [object()]), "state_dict")
    for states in (None, counter):
        raises(lambda: resumed.load(folder, states), "pass a list of states")
    for value, kind in ((resumed_model, "Net"),
                        (fractions.Fraction(1, 3), "Fraction")):
        counter.value = {"model": [value]}
        raises(lambda: engine.save(folder, [counter]),
               "state 'Counter'", f"model.0 is of type {kind}")
    # What only rank 0 could save is what all ranks would load.
    counter.value = {"steps": world.rank, "mean": torch.zeros(2)}
    if world.size > 1:
        raises(lambda: engine.save(folder, [counter]), "state 'Counter'",
               "steps is 0 on rank 0 and 1 on rank 1", "is_per_rank")
    counter.is_per_rank = True
    engine.save(folder, [counter])
    restored.is_per_rank = True
    resumed.load(folder, [restored])
    assert restored.value["steps"] == world.rank


def samplers(world):
    sampler = tessera.BatchSampler(40, 2, seed=4)
    mine = list(sampler)
    assert len(mine) == len(sampler) == 40 // (2 * world.size)
    seen = torch.zeros(40, dtype=torch.int64)
    for batch in mine:
        for sample in batch:
            seen[sample] += 1
    others = seen.clone()
    model = make_net()
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    engine.sum_over_ranks(others)
    assert others.sum() == 2 * world.size * len(mine) and others.max() == 1
    sampler = tessera.BatchSampler(40, 2, seed=4)
    for _ in range(2):  # a loader that reads ahead, and is not torch's
        sampler.done()
    later = tessera.BatchSampler(40, 2, seed=4)
    later.load_state_dict(sampler.state_dict())
    assert list(later) == mine[2:]
    # With batches of another size, from exactly the next sample on.
    order = [batch[0] for batch in tessera.BatchSampler(
        40, 1, seed=4, share=(0, 1))]
    other = tessera.BatchSampler(40, 3, seed=4)
    other.load_state_dict(sampler.state_dict())
    begin = 2 * 2 * world.size + 3 * world.rank
    assert next(iter(other)) == order[begin:begin + 3]
    # What is not the same samples cannot continue.
    state = sampler.state_dict()
    for other, *texts in (
            (tessera.BatchSampler(44, 2, seed=4), "40 samples", "has 44"),
            (tessera.BatchSampler(40, 2, seed=5), "seed 4", "seed 5")):
        raises(lambda: other.load_state_dict(state), *texts, "BatchSampler")
    del state["samples_of_epoch"], state["seed"]  # as earlier versions
    other.load_state_dict(state)
    # Of an epoch that was begun otherwise, whole steps are left.
    of_step = 3 * 2 * world.size
    for begin in range(0, 48, 4):
        rest = tessera.BatchSampler(48, 2, accumulate=3)
        rest.load_state_dict({"epoch": 0, "samples": begin})
        left = (48 - begin) // of_step * 3
        assert rest.epoch == (0 if left else 1)
        if left:
            assert rest.state_dict()["samples"] == begin
            assert len(list(rest)) == left, (begin, left)
    raises(lambda: tessera.BatchSampler(8 * world.size, 2, accumulate=5),
           "5 in a step", "accumulate")
    raises(lambda: tessera.BatchSampler(1, 2), "Lower batch_size")
    raises(lambda: tessera.BatchSampler(10, 2.5), "batch_size is 2.5")
    for options, *texts in (
            ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
            ({"accumulate": -1}, "accumulate is -1"),
            ({"samples": 0}, "samples is 0"),
            ({"samples": [1, 2]}, "samples is of type list", "len()"),
            ({"seed": -1}, "seed is -1; it must be at least 0"),
            ({"seed": 2**64}, "below 2**64"),
            ({"share": (2, 2)}, "share is (2, 2)", "engine.batches"),
            ({"share": 1}, "share is 1", "(index, count)"),
            ({"drop_last": True}, "'drop_last'", "are left out"),
            ({"shuffle": False}, "'shuffle'", "torch.utils.data.Subset"),
            ({"num_replicas": 2}, "'num_replicas'", "share="),
            ({"epochs": 2}, "'epochs' is not an argument", "accumulate")):
        raises(lambda options=options: tessera.BatchSampler(
            **{"samples": 40, "batch_size": 2, **options}), *texts,
            "BatchSampler: ")
    tessera.BatchSampler(40, 2, seed=2**64 - 1)


class WithDropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_net()
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, ids):
        return self.drop(self.net(ids))


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return ids_of(index, 0, rows=1)[0], index


class Loop:
    """A loop as docs/python.md writes it."""

    def __init__(self, world, workers=0, accumulate=1):
        self.sampler = tessera.BatchSampler(
            len(Samples()), 12 // world.size // accumulate, seed=7,
            accumulate=accumulate)
        self.loader = torch.utils.data.DataLoader(
            Samples(), batch_sampler=self.sampler, num_workers=workers)
        self.accumulate = accumulate
        self.engine = tessera.wrap(WithDropout(), optimizer=ADAMW, **SMALL)
        self.epochs = []  # the samples of each
        self.losses = []

    def run(self, folder=None, save_after=None, until=10):
        """Leaves at step `until`, in the third epoch of four steps."""
        micro = 0
        while len(self.losses) < until:
            self.epochs.append([])
            for ids, samples in self.loader:
                self.epochs[-1].extend(samples.tolist())
                loss = loss_of(self.engine.module, ids)
                self.engine.backward(loss / self.accumulate)
                micro += 1
                if micro % self.accumulate:
                    continue
                self.engine.step()
                self.losses.append(loss.item())
                if len(self.losses) == save_after:
                    self.engine.save(folder, [self.sampler])
                if len(self.losses) == until:
                    break


def resumed_loops(world):
    """Bit for bit, with workers that read ahead and with dropout."""
    if 12 % world.size:
        return
    for workers, accumulate in ((0, 1), (2, 1), (0, 12 // world.size)):
        folder = os.path.join(
            shared_folder(), f"loop{workers}_{accumulate}")
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(world.rank)
        loop = Loop(world, workers, accumulate)
        next(iter(loop.loader))  # a look at it
        loop.run(folder, save_after=6)
        first, second, third = loop.epochs
        assert len(first) == len(second) == 48 // world.size, loop.epochs
        assert first != second, "epochs have the same order"
        torch.manual_seed(100)
        resumed = Loop(world, workers, accumulate)
        assert resumed.engine.load(folder, [resumed.sampler]) == 6
        resumed.run(until=4)
        assert resumed.losses == loop.losses[6:], (
            workers, accumulate, resumed.losses, loop.losses)
        assert resumed.epochs == [second[len(second) // 2:], third]


def positions_of_samplers(world):
    """What was handed out, but not trained on, comes again."""
    loop = Loop(world)
    loop.run(until=1)
    for _ in range(2):
        for _, samples in loop.loader:
            again = samples.tolist()
            break
    loop.run(until=2)
    assert loop.epochs[1] == again != loop.epochs[0]
    state = loop.sampler.state_dict()
    assert state == {"epoch": 0, "samples": 24, "samples_of_epoch": 48,
                     "seed": 7}, state
    # An epoch that was seen to its end is over.
    assert loop.sampler.epoch == 0
    rest = [samples.tolist() for _, samples in loop.loader]
    assert len(rest) == 2 and loop.sampler.epoch == 1
    iterator = iter(loop.sampler)
    next(iterator)
    loop.sampler.load_state_dict(state)
    raises(lambda: next(iterator), "position was loaded")
    assert next(iter(loop.sampler)) == rest[0]


class Counting(torch.nn.Module):
    """Its extra state is no tensor."""

    def __init__(self):
        super().__init__()
        self.net = make_net()
        self.calls = 0

    def forward(self, ids):
        self.calls += 1
        return self.net(ids)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Outer(torch.nn.Module):
    """Has its extra state under two names."""

    def __init__(self):
        super().__init__()
        self.part = Counting()
        self.same = self.part

    def forward(self, ids):
        return self.part(ids)


def extra_states(world):
    folder = os.path.join(shared_folder(), "extra_states")
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    model = Outer()
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    train(engine, 3, world.rank)
    model.part.calls += world.rank  # rank 0's is saved
    engine.save(folder)
    state = engine.state_dict()
    resumed = Outer()
    other = tessera.wrap(resumed, optimizer=ADAMW, **SMALL)
    other.load(folder)
    assert resumed.part.calls == 3
    plain = Outer()
    if world.rank == 0:
        assert state.keys() == plain.state_dict().keys()
        plain.load_state_dict(state)
        assert plain.part.calls == 3
    torch.manual_seed(5)  # the same values on every rank
    plain = Outer()
    plain.part.calls = 5
    missing, unexpected = other.load_state_dict(plain.state_dict())
    assert not missing and not unexpected and resumed.part.calls == 5
    state = plain.state_dict()
    del state["same._extra_state"]
    raises(lambda: other.load_state_dict(state),
           "missing: same._extra_state")


def transforms(world):
    """Of torch.func, of which no operator of the engine is a part."""
    from torch import func
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24),
        torch.nn.Tanh(), torch.nn.Linear(24, 3))
    x = torch.randn(4, 6)

    def results(model):
        scalar = lambda row: model(row).square().sum()
        return [
            *func.jvp(model, (x,), (x.cos(),)), func.vmap(model)(x),
            func.grad(lambda rows: model(rows).square().sum())(x),
            func.jacrev(model)(x[0]), func.jacfwd(model)(x[0]),
            func.hessian(scalar)(x[0]), func.vmap(func.grad(scalar))(x),
            func.vmap(lambda row: func.jvp(model, (row,), (row,))[1])(x)]

    want = results(plain)
    for stage in (2, 3):
        model = copy.deepcopy(plain)
        engine = tessera.wrap(
            model, optimizer=ADAMW, zero_stage=stage, log_memory=False,
            sharding={"min_group_numel": 1})
        for _ in range(2):
            for got, one in zip(results(model), want):
                assert torch.allclose(got, one, atol=1e-6), (got, one)
        # The engine trains as before.
        other = copy.deepcopy(plain)
        optimizer = plain_adamw(other)
        for _ in range(2):
            engine.backward(model(x).square().sum())
            engine.step()
            other(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with engine.gather():
            for got, one in zip(model.parameters(), other.parameters()):
                close(got, one, 2e-6, "a weight")


class Doubled(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 2 * x * weight

    @staticmethod
    def backward(ctx, gradient):
        Doubled.calls += 1
        x, weight = ctx.saved_tensors
        return 2 * gradient * weight, (2 * gradient * x).sum((0, 1))


class WithFunction(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_net()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1, 50))

    def forward(self, ids):
        return Doubled.apply(self.net(ids), self.scale)


def python_hooks(world):
    """Functions and hooks of Python run, on values of the parameters."""
    plain = WithFunction()
    model = copy.deepcopy(plain)
    for each in (plain, model):
        each.calls = []
        each.net.blocks[0].register_forward_hook(
            lambda module, _, result, each=each: each.calls.append(
                ("forward", module.up.weight.detach().sum().item())))
        each.net.blocks[1].register_full_backward_hook(
            lambda *_, each=each: each.calls.append(("backward",)))
        each.net.blocks[1].up.weight.register_hook(
            lambda gradient, each=each: each.calls.append(
                ("gradient", gradient.shape)))
        each.scale.register_post_accumulate_grad_hook(
            lambda parameter, each=each: each.calls.append(("accumulated",)))
    engine = tessera.wrap(model, optimizer={"type": "sgd", "lr": 0.1}, **SMALL)
    Doubled.calls = 0
    ids = ids_of(0, 0)
    plain_loss = loss_of(plain, ids)
    plain_loss.backward()
    loss = loss_of(model, ids)
    engine.backward(loss)
    assert loss.item() == plain_loss.item()
    assert Doubled.calls == 2
    assert sorted(map(str, model.calls)) == sorted(map(str, plain.calls)), (
        model.calls, plain.calls)
    close(engine.grad(model.scale), plain.scale.grad, 1e-6, "the gradient")
    engine.zero_grad()


def lazily_made(world):
    with tessera.lazy(seed=5):
        big = torch.nn.Linear(30000, 30000)  # 3.6 GB
        model = make_net(features=80)
    del big
    assert model.seen.item() == 0
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    with engine.gather():
        weight = model.blocks[0].up.weight
        assert 0.01 < weight.std() < 0.2, weight.std()
        sums = weight.double().sum().item()
    losses = train(engine, 3, world.rank)
    assert all(loss == loss for loss in losses)
    with tessera.lazy(seed=5):
        _ = torch.nn.Linear(30000, 30000)
        alone = make_net(features=80)
    tessera.materialize(alone)
    assert alone.blocks[0].up.weight.double().sum().item() == sums


def divided_layers(world):
    if world.size % 2:
        return
    plan = {"blocks.*.up": "column", "blocks.*.down": "row"}
    plain = make_net()
    model = copy.deepcopy(plain)
    engine = tessera.wrap(
        model, optimizer=ADAMW, parallel={"tensor": 2}, tensor_plan=plan,
        **SMALL)
    index, count = engine.batches
    assert count == world.size // 2
    expected = train_plain(plain, plain_adamw(plain), 3, count)
    for step, loss in enumerate(train(engine, 3, index)):
        assert abs(loss - expected[step][index]) < 2e-5, (step, loss)
    for name, value in engine.state_dict().items():
        if name != "seen":
            # Sums over the ranks have another order.
            close(value, plain.state_dict()[name], 2e-5, name)
    # Whole values in, whole values out.
    whole = {}
    engine.for_each_parameter(
        lambda name, value: whole.update({name: value.clone()}))
    with engine.gather() as scope:
        for name, part in model.named_parameters():
            assert torch.equal(scope.full(part), whole[name]), name
            assert whole[name].shape == plain.state_dict()[name].shape, name
        up = model.blocks[0].up.weight
        with torch.no_grad():
            for read in (lambda: up.norm(),
                         lambda: up.view(-1).norm(),
                         lambda: up[0].sum(),
                         lambda: up[0, 0].item(),
                         lambda: up.double(),
                         lambda: up.numpy(),
                         lambda: up[0].numpy(),
                         lambda: numpy.asarray(up),
                         lambda: up.tolist(),
                         lambda: up[:1].tolist()):
                raises(read, "'blocks.0.up.weight'", "by a tensor plan",
                       "detach()")
        assert up.detach().numpy().shape == up.shape  # the part is meant
        assert len(up.detach().tolist()) == len(up)
    engine.load_state_dict(dict(whole), strict=False)
    others = [world.rank % 2] + [index] * (count > 1)  # that have other values
    for other in others:
        state = {name: value.clone() for name, value in whole.items()}
        state["blocks.0.up.weight"][0] += 1 + other
        raises(lambda: engine.load_state_dict(state, strict=False),
               "load_state_dict:", "other values", "nothing has changed",
               "'blocks.0.up.weight'")
    raises(lambda: engine.load_state_dict(
        {"blocks.0.up.weight": whole["blocks.0.up.weight"][:2]}, strict=False),
        "blocks.0.up.weight is [2")
    with torch.no_grad(), engine.gather(writable=True) as scope:
        scope.full(model.blocks[0].up.weight).mul_(2)
    whole["blocks.0.up.weight"] *= 2
    engine.for_each_parameter(
        lambda name, value: close(value, whole[name], 0, name))
    loss_of(model, ids_of(9, index)).backward()
    plain.load_state_dict(whole, strict=False)
    plain.zero_grad()
    (sum(loss_of(plain, ids_of(9, i)) for i in range(count)) / count).backward()
    for name, part in plain.named_parameters():
        close(engine.grad(dict(model.named_parameters())[name]), part.grad,
              2e-5, name)
    engine.zero_grad()
    raises(lambda: tessera.wrap(make_net(), parallel={"tensor": 2}),
           "tensor_plan")
    # Batches of ranks, as without it.
    divided = tessera.wrap(
        make_net(), optimizer=ADAMW, parallel={"tensor": 2}, tensor_plan=plan,
        **SMALL)
    loss_of(divided.module, ids_of(0, world.rank)).backward()
    raises(divided.step, "divide layers among them", "engine.batches")


def configurations(world):
    """The keys of a file of `tessera train`, and errors that name them."""
    path = os.path.join(shared_folder(), f"config{world.rank}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"task": "examples", "training": {"epochs": 3}, '
                   '"optimizer": {"type": "lion", "lr": 0.5}}')
    engine = tessera.wrap(make_net(), path, optimizer={"lr": 0.25}, **SMALL)
    assert engine.learning_rate == 0.25
    engine.learning_rate = 0.125
    assert engine.learning_rate == 0.125
    raises(lambda: tessera.wrap(make_net(), optimzer={}), "'optimizer'")
    raises(lambda: tessera.wrap(make_net(), optimizer={"lr": -1}),
           "optimizer.lr is -1")
    raises(lambda: tessera.wrap(make_net(), tensor_plan={"x": "row"}),
           "parallel.tensor is 1")
    raises(lambda: tessera.wrap("model"), "torch.nn.Module")
    raises(lambda: tessera.init(device="cpu"), "has joined its job already")


def unwraps(world):
    plain = make_net()
    model = copy.deepcopy(plain)
    engine = tessera.wrap(model, optimizer=ADAMW, **SMALL)
    engine.unwrap()
    assert torch.equal(model(ids_of(0, 0)), plain(ids_of(0, 0)))
    copy.deepcopy(model).to(torch.float64)
    raises(engine.step, "closed")


if __name__ == "__main__":
    main([zero_stages, tiers_and_budgets, bfloat16, accumulates, gathers,
          averages, whole_values, checkpoints, samplers, resumed_loops,
          positions_of_samplers, extra_states, transforms, python_hooks,
          lazily_made, divided_layers, configurations, unwraps])

# SPDX-License-Identifier: Apache-2.0
"""Misuse is an error that names what to do instead, and nothing is lost."""
import copy
import io
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import torch

import tessera
from ranks import (
    SMALL, ids_of, loss_of, main, make_net, raises, shared_folder, train)

SGD = {"type": "sgd", "lr": 0.1}


def another_torch(world):
    """An import with another version of torch names both, and what to do."""
    faked = ("import torch; torch.__version__ = '2.99.1+cpu'; import tessera")
    found = subprocess.run([sys.executable, "-c", faked], capture_output=True,
                           text=True, check=False)
    needed = torch.__version__.split("+")[0]
    assert found.returncode != 0
    assert "ImportError: tessera was built for torch " + needed in found.stderr
    assert "torch 2.99.1 is installed" in found.stderr
    assert f"Install torch=={needed}" in found.stderr


def trained():
    """A model in the middle of its training, with gradients."""
    model = make_net()
    engine = tessera.wrap(model, optimizer=SGD, zero_stage=3, **SMALL)
    rank = tessera.init().rank
    train(engine, 2, rank)
    engine.backward(loss_of(model, ids_of(2, rank)))
    return model, engine


def goes_on(world):
    """What misuse did not change: the loss after it."""
    model, engine = trained()
    engine.step()
    return loss_of(model, ids_of(9, world.rank)).item()


def check(world, misuse, *texts):
    model, engine = trained()
    raises(lambda: misuse(model), *texts)
    engine.step()
    assert loss_of(model, ids_of(9, world.rank)).item() == goes_on(world)


def optimizers_of_torch(world):
    for foreach in (False, True):
        check(world,
              lambda model, foreach=foreach: torch.optim.AdamW(
                  model.parameters(), foreach=foreach).step(),
              "engine.step()")
    check(world, lambda model: torch.optim.SGD(
        model.parameters(), lr=1.0, foreach=False).step(), "engine.step()")
    check(world, lambda model: torch.nn.utils.clip_grad_norm_(
        model.parameters(), 1.0), "engine.clip_grad_norm()")


def scaled_gradients(world):
    def unscale(model):
        # Each rank's own bytes are all that it could look at.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.scale(torch.ones(()))
        scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))

    check(world, unscale, "precision.parameters", "loss_scale", "GradScaler")


def files_for_folders(world):
    _, engine = trained()
    engine.step()
    path = os.path.join(shared_folder(), "weights.pt")
    if world.rank == 0:
        torch.save({}, path)
    engine.sum_over_ranks(torch.zeros(1))  # all ranks wait for it
    raises(lambda: engine.save(path), "weights.pt",
           "is a file; choose a folder")


def other_optimizers(world):
    _, engine = trained()
    engine.step()
    folder = os.path.join(shared_folder(), "of_sgd")
    engine.save(folder)
    other = tessera.wrap(make_net(), optimizer={"type": "adamw"}, **SMALL)
    raises(lambda: other.load(folder), "'sgd'", "'adamw'", "load_weights()")
    other.load_weights(folder)


def moves_and_casts(world):
    for move in ("double", "half", "bfloat16"):
        check(world, lambda model, move=move: getattr(model, move)(),
              "before tessera.wrap()")
    # Where it is already, in its own dtype, nothing moves.
    model, engine = trained()
    engine.step()
    model.to("cpu").to(torch.float32).train().eval()


def state_dicts(world):
    check(world, lambda model: model.load_state_dict(make_net().state_dict()),
          "is sharded", "engine.gather")
    if world.size > 1:  # one rank has all values
        check(world,
              lambda model: torch.save(model.state_dict(), io.BytesIO()),
              "is sharded", "gather()")


def copies(world):
    check(world, copy.deepcopy, "before wrap()", "engine.gather()")
    check(world, lambda model: copy.deepcopy(model.blocks), "before wrap()")


def states_of_one_rank(world):
    """What state_dict() returns is on rank 0 only; all ranks are told."""
    model, engine = trained()
    state = engine.state_dict()
    before = engine.state_dict()
    if world.size > 1:
        for strict in (True, False):
            raises(lambda strict=strict: engine.load_state_dict(state, strict),
                   f"rank 0 passes {len(make_net().state_dict())} values",
                   "rank 1 0", "engine.load_weights()")
    for name, value in engine.state_dict().items():
        assert torch.equal(value, before[name]), name
    engine.step()


def values_of_one_rank(world):
    """As of a part that each rank has initialized by itself."""
    if world.size == 1:
        return
    model, engine = trained()
    engine.step()
    before = engine.state_dict()
    state = make_net().state_dict()
    engine.load_state_dict(dict(state))
    loaded = engine.state_dict()
    buffers = {**state, "seen": state["seen"] + 1 + world.rank}
    raises(lambda: engine.load_state_dict(buffers),
           "rank 0 and rank 1 pass other values of 'seen'",
           "nothing has changed")
    state["blocks.1.up.bias"] = state["blocks.1.up.bias"].clone()
    state["blocks.1.up.bias"][3] += world.rank
    state["head.bias"] = torch.full_like(state["head.bias"], world.rank)
    text = raises(lambda: engine.load_state_dict(state),
                  "rank 0 and rank 1 pass other values", "and 1 more",
                  "nothing has changed", "engine.load_weights()")
    assert "blocks.1.up.bias" in text or "head.bias" in text, text
    for name, value in engine.state_dict().items():
        assert torch.equal(value, loaded[name]), name
    assert before.keys() == loaded.keys()
    train(engine, 1, world.rank)


def changes_in_gather_scopes(world):
    """They are refused before anything has changed; afterwards they work."""
    folder = os.path.join(shared_folder(), "gathered")
    for stage in (1, 3):
        model = make_net(seed=1)
        engine = tessera.wrap(model, optimizer=SGD, zero_stage=stage, **SMALL)
        train(engine, 2, world.rank)
        engine.save(folder)
        engine.save_weights(folder + ".safetensors")
        train(engine, 1, world.rank, first=2)
        engine.backward(loss_of(model, ids_of(3, world.rank)))
        before = engine.state_dict()
        zeros = {name: torch.zeros_like(value)
                 for name, value in make_net().state_dict().items()}
        for change, name in (
                (engine.step, "step"),
                (lambda: engine.load(folder), "load"),
                (lambda: engine.load_weights(folder + ".safetensors"),
                 "load_weights"),
                (lambda: engine.load_state_dict(zeros), "for_each_parameter"),
                (lambda: engine.for_each_parameter(
                    lambda _, value: value.zero_(), writable=True),
                 "for_each_parameter"),
                (engine.unwrap, "unwrap")):
            for part in ((), (model.blocks[1],)):
                with engine.gather(*part):
                    raises(change, f"engine.{name}: group", "gather()",
                           "nothing has changed")
            for key, value in engine.state_dict().items():
                assert torch.equal(value, before[key]), (name, key)
        engine.step()  # once, with the gradients of before
        after = engine.state_dict()
        other = tessera.wrap(
            make_net(seed=1), optimizer=SGD, zero_stage=stage, **SMALL)
        train(other, 4, world.rank)
        for key, value in other.state_dict().items():
            assert key == "seen" or torch.equal(value, after[key]), key


def averages_and_gather_scopes(world):
    """ema() is opened outside of gather(), which may end later."""
    for stage in (1, 3):
        model = make_net()
        engine = tessera.wrap(
            model, optimizer={**SGD, "ema_decay": 0.75}, zero_stage=stage,
            **SMALL)
        train(engine, 3, world.rank)
        before = engine.state_dict()

        def open_ema(engine=engine):
            with engine.ema():
                pass
        for part in ((), (model.blocks[1],)):
            with engine.gather(*part):
                raises(open_ema, "engine.ema: group", "engine.gather()",
                       "Open the scope of ema() first")
            for key, value in engine.state_dict().items():
                assert torch.equal(value, before[key]), key
        with engine.gather():
            weight = model.blocks[1].up.weight.clone()
        with engine.ema():
            averaged = engine.gather()
            averaged.__enter__()
            assert not torch.equal(model.blocks[1].up.weight, weight)
        assert torch.equal(model.blocks[1].up.weight, weight)
        averaged.__exit__(None, None, None)
        for key, value in engine.state_dict().items():
            assert torch.equal(value, before[key]), key
        open_ema()
        train(engine, 1, world.rank, first=3)


def groups_of_checkpoints(world):
    """Values of groups are loaded by names, or refused before all else."""
    folder = os.path.join(shared_folder(), "groups")

    def wrapped(*groups, seed=0):
        """groups: names of parts of the model, with the values of each."""
        model = make_net(seed)
        return tessera.wrap(model, optimizer=torch.optim.AdamW([
            {"params": [one for name, one in model.named_parameters()
                        if name.startswith(parts)], **values}
            for parts, values in groups], lr=0.5), **SMALL)

    def rates(engine):
        return [group["lr"] for group in engine.optimizer.param_groups]

    blocks, rest = ("blocks",), ("embed", "head")
    engine = wrapped((blocks, {"lr": 0.01}), (rest, {"lr": 0.02, "eps": 1e-6}))
    train(engine, 2, world.rank)
    engine.save(folder)
    # In another order, and divided.
    other = wrapped((rest, {}), (blocks, {}), seed=1)
    other.load(folder)
    assert rates(other) == [0.02, 0.01]
    assert [group["eps"] for group in other.optimizer.param_groups] == [
        1e-6, 1e-8]
    other = wrapped((("blocks.0", "blocks.1"), {}), (rest, {}),
                    (("blocks.2",), {}))
    other.load(folder)
    assert rates(other) == [0.01, 0.02, 0.01]
    # One that would have to forget some.
    other = wrapped((blocks + rest, {"lr": 0.25}), seed=1)
    before = other.state_dict()
    raises(lambda: other.load(folder), "group 0 of the optimizer",
           "saved in group 1 with eps=1e-06", "of group 0 with eps=1e-08",
           "Nothing has changed")
    assert rates(other) == [0.25]
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name]), name
    train(other, 1, world.rank)
    # Of another optimizer, by position.
    raises(lambda: other.optimizer.load_state_dict(
        {"param_groups": [{"params": [0], "lr": 0.1}]}),
        "group 0 of the optimizer has", "has 1", "Give wrap()")
    # The recipe of unfreezing, with an optimizer of torch.
    model = make_net()
    model.blocks[0].requires_grad_(False)

    def adamw(lr):
        return torch.optim.AdamW(
            [one for one in model.parameters() if one.requires_grad], lr=lr)

    engine = tessera.wrap(model, optimizer=adamw(0.01), **SMALL)
    train(engine, 2, world.rank)
    engine.save(folder + "_frozen")
    saved = engine.state_dict()
    engine.unwrap()
    model.requires_grad_(True)
    engine = tessera.wrap(model, optimizer=adamw(0.5), **SMALL)
    engine.load(folder + "_frozen")
    assert rates(engine) == [0.01]
    for name, value in engine.state_dict().items():
        assert torch.equal(value, saved[name]), name
    train(engine, 1, world.rank)
    # A state that refuses: nothing of the engine has changed.
    sampler = tessera.BatchSampler(64, batch_size=4)
    engine.save(folder + "_data", [sampler])
    other = wrapped((blocks + rest, {}), seed=1)
    before = other.state_dict()
    raises(lambda: other.load(
        folder + "_data", [tessera.BatchSampler(65, batch_size=4)]),
        "BatchSampler had 64 samples")
    assert rates(other) == [0.5]
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name]), name


def other_modules_on_ranks(world):
    """Both values of the first parameter that differs, or of the option."""
    if world.size == 1:
        return

    def frozen(model):
        model.blocks[1].requires_grad_(world.rank == 0)

    def deeper(model):
        if world.rank == 1:
            model.blocks.append(torch.nn.Linear(3, 3))

    def wider(model):
        if world.rank == 1:
            model.head.bias = torch.nn.Parameter(torch.zeros(51))

    def in_double(model):
        if world.rank == 1:
            model.blocks[0].up.double()

    for change, texts in (
            (frozen, ("parameter 'blocks.1.", "trained on rank 0 and",
                      "frozen on rank 1")),
            (deeper, ("parameter 'blocks.3.", "is on rank 1 and not on rank 0")),
            (wider, ("'head.bias' is Float [50]", "Float [51]")),
            (in_double, ("parameter 'blocks.0.up.", "Double"))):
        model = make_net()
        change(model)
        raises(lambda model=model: tessera.wrap(model, optimizer=SGD, **SMALL),
               "the module on rank 1 differs from rank 0's", *texts)
    raises(lambda: tessera.wrap(
        make_net(), optimizer=SGD, **SMALL,
        precision={"parameters": "bfloat16"} if world.rank else {}),
        "the option precision.parameters is not set on rank 0 and", "bfloat16")


def messages(world):
    """They have the names of Python and of torch."""
    model, engine = trained()
    assert engine.clip_grad_norm(1e9, norm_type=3.0) == engine.grad_norm(3.0)
    for norm_type in (0, -math.inf):
        raises(lambda norm_type=norm_type: engine.clip_grad_norm(
            1.0, norm_type=norm_type), "engine.clip_grad_norm", "above 0")
        raises(lambda norm_type=norm_type: engine.grad_norm(norm_type),
               "engine.grad_norm", "above 0")
    engine.step()
    path = os.path.join(shared_folder(), "message.safetensors")
    engine.save_weights(path)
    assert repr(engine.load_weights(path)) == (
        "LoadWeightsReport(missing=[], unexpected=[])")
    weight = model.head.bias
    model.head.bias.data = torch.zeros(50)
    text = raises(lambda: train(engine, 1, world.rank), "unwrap()")
    assert "Engine::" not in text and "tessera::" not in text, text
    assert weight is model.head.bias


def attributes(world):
    """What would have no effect."""
    _, engine = trained()
    for name, *texts in (
            ("lr", "Engine has no attribute 'lr'", "'learning_rate'"),
            ("learningrate", "did you mean 'learning_rate'"),
            ("model", "did you mean 'module'"),
            ("gradient_clipping", "no effect")):
        raises(lambda name=name: setattr(engine, name, 0.5), *texts)
    raises(lambda: setattr(engine, "device", "cpu"), "device")
    engine.learning_rate = 0.25
    assert engine.learning_rate == 0.25
    sampler = tessera.BatchSampler(40, 2)
    raises(lambda: setattr(sampler, "batch_size", 4),
           "BatchSampler has no attribute 'batch_size'")

    class Own(tessera.BatchSampler):
        pass

    Own(40, 2).batch_size = 4


def writes(world):
    def fill(model):
        with torch.no_grad():
            model.blocks[0].up.weight.fill_(1)
    check(world, fill, "is sharded", "writable")


def replaced_parameters(world):
    model, engine = trained()
    engine.step()
    model.blocks[1].up.weight = torch.nn.Parameter(torch.zeros(72, 24))
    raises(lambda: engine.backward(loss_of(model, ids_of(0, world.rank))),
           "'blocks.1.up.weight' was replaced after wrap()")


def changed_modules(world):
    """What would not be trained, or not be saved as it is."""
    def added(model):
        model.blocks.append(torch.nn.Linear(24, 24))

    def replaced(model):
        model.blocks[1].down = torch.nn.Linear(72, 24)

    def registered(model):
        model.blocks[1].register_parameter(
            "scale", torch.nn.Parameter(torch.ones(24)))

    def removed(model):
        del model.blocks[2].norm

    for change, name, verb in (
            (added, "blocks.3.weight", "added"),
            (replaced, "blocks.1.down.weight", "replaced"),
            (registered, "blocks.1.scale", "added"),
            (removed, "blocks.2.norm.weight", "removed")):
        model, engine = trained()
        loss = loss_of(model, ids_of(0, world.rank))
        change(model)
        # All before they are collective.
        for use in (engine.step, engine.state_dict,
                    lambda: engine.backward(loss),
                    lambda: engine.save("never"),
                    lambda: engine.save_weights("never"),
                    lambda: engine.for_each_parameter(print)):
            raises(use, f"'{name}' was {verb} after wrap()", "unwrap()")
    def pruned(model):  # as by torch.nn.utils.prune
        up = model.blocks[1].up
        weight = up.weight
        del up.weight
        up.register_parameter("weight_orig", weight)

    def exchanged(model):
        one, other = model.blocks[0].up, model.blocks[1].up
        one.weight, other.weight = other.weight, one.weight

    for change, old, new in (
            (pruned, "blocks.1.up.weight", "blocks.1.up.weight_orig"),
            (exchanged, "blocks.0.up.weight", "blocks.1.up.weight")):
        model, engine = trained()
        change(model)
        for use in 2 * (engine.state_dict, engine.step,
                        lambda: engine.save_weights("never")):
            raises(use, f"'{old}' was renamed after wrap()", f"'{new}'",
                   "unwrap()")
    exchanged(model)
    engine.step()
    # What was there before is right again.
    model, engine = trained()
    down = model.blocks[1].down
    replaced(model)
    raises(engine.step, "was replaced")
    model.blocks[1].down = down
    engine.step()
    # Nothing of theirs would be lost.
    model, engine = trained()
    model.activation = torch.nn.Tanh()
    model.blocks[0] = torch.nn.Sequential(model.blocks[0])
    model.blocks[1].alias = model.blocks[1].up
    engine.step()
    other = make_net(seed=3)
    other.blocks[0] = torch.nn.Sequential(other.blocks[0])
    other.blocks[1].alias = other.blocks[1].up
    engine.load_state_dict(other.state_dict())
    state = engine.state_dict()  # with the names of wrap()
    if world.rank == 0:
        assert torch.equal(state["blocks.0.up.weight"],
                           other.blocks[0][0].up.weight)
        assert torch.equal(state["head.weight"], other.head.weight)
    model.added = torch.nn.BatchNorm1d(24, affine=False)
    model.added.running_mean.fill_(2)
    state = engine.state_dict()
    if world.rank == 0:
        assert state["added.running_mean"].tolist() == [2] * 24
    train(engine, 1, world.rank)


def groups_and_states_of_torch(world):
    """The optimizer that is given is the one that trains."""
    def wrapped(**options):
        model = make_net()
        given = torch.optim.AdamW(model.parameters(), **options)
        return given, tessera.wrap(model, optimizer=given, **SMALL)

    def step(engine):
        engine.backward(loss_of(engine.module, ids_of(0, world.rank)))
        engine.step()

    given, engine = wrapped()
    foreign = {"params": [torch.nn.Parameter(torch.ones(3))]}
    raises(lambda: engine.optimizer.add_param_group(foreign),
           "add_param_group", "before it")
    step(engine)
    given.add_param_group(foreign)
    raises(lambda: step(engine), "would not be trained")
    # A checkpoint of plain PyTorch has moments.
    plain = make_net()
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.5)
    plain(ids_of(0, 0)).sum().backward()
    adamw.step()
    raises(lambda: tessera.wrap(plain, optimizer=adamw, **SMALL),
           "has stepped already", "before the first step")
    others = torch.optim.AdamW(make_net().parameters())
    raises(lambda: tessera.wrap(make_net(), optimizer=others, **SMALL),
           "that the model has not", "model.parameters()")
    given, engine = wrapped()
    raises(lambda: engine.optimizer.load_state_dict(adamw.state_dict()),
           "moments", "param_groups")
    engine.optimizer.load_state_dict(
        {"param_groups": adamw.state_dict()["param_groups"]})
    assert engine.optimizer.param_groups[0]["lr"] == 0.5
    assert given.param_groups[0]["params"][0] is engine.module.embed.weight
    step(engine)
    assert engine.learning_rate == 0.5
    given.load_state_dict(adamw.state_dict())
    raises(lambda: step(engine), "has loaded a state", "engine.step()")
    given, engine = wrapped()
    raises(lambda: setattr(engine, "learning_rate", 0.1), "param_groups")
    given.param_groups[0]["lr"] = 0.25
    assert engine.learning_rate == 0.25
    given.param_groups[0]["amsgrad"] = True
    raises(lambda: step(engine), "amsgrad")
    given.param_groups[0].update(amsgrad=False, betas=(0.9, 1.5))
    raises(lambda: step(engine), "optimizer.param_groups[0]", "1.5")
    # The model is as before a wrap() that fails.
    model = make_net()
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    given.param_groups[0]["momentum"] = -1
    raises(lambda: tessera.wrap(model, optimizer=given, **SMALL), "momentum")
    tessera.wrap(model, optimizer=SGD, **SMALL)


def states_without_moments(world):
    """engine.optimizer.state_dict() is not taken for a saved optimizer."""
    def wrapped(**options):
        model = make_net()
        return tessera.wrap(
            model, optimizer=torch.optim.SGD(model.parameters(), **options),
            **SMALL)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "engine.optimizer.state_dict")
        engine = wrapped(lr=0.5, momentum=0.9)
        raises(engine.optimizer.state_dict, "no moments", "engine.save()")
        # Checkpoints of the engine have moments, whoever names the optimizer.
        folder = os.path.join(shared_folder(), "moments")
        engine.save(folder, [engine.optimizer])
        engine.load(folder, [engine.optimizer])
        plain = wrapped(lr=0.5)  # has none
        plain.optimizer.load_state_dict(plain.optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = copy.deepcopy(engine.optimizer.state_dict())
    other = wrapped(lr=0.1, momentum=0.9)
    raises(lambda: other.optimizer.load_state_dict(state), "no moments",
           "Engine.save()")
    other.optimizer.load_state_dict({"param_groups": state["param_groups"]})
    assert other.optimizer.param_groups[0]["lr"] == 0.5


def options_of_others(world):
    """Sections that only `tessera train` and init() read, and values that no
    configuration has."""
    for key, value, *texts in (
            ("training", {"clip_grad_norm": 1}, "engine.clip_grad_norm()"),
            ("schedule", {"warmup_steps": 9}, "engine.learning_rate"),
            ("data", {}, "`tessera train`"),
            ("device", "cpu", "tessera.init()"),
            ("timeout_s", 5, "tessera.init()"),
            ("optimizer", {"lr": torch.tensor(0.1)}, "optimizer.lr", "Tensor",
             ".item()"),
            ("optimizer", torch.optim.AdamW, "the class AdamW",
             "pass an instance"),
            ("optimizer", {"lr": float("nan")}, "optimizer.lr is nan"),
            ("optimizer", [torch.optim.AdamW(make_net().parameters())],
             "optimizer is of type list", "AdamW"),
            ("optimizer", lambda model: None, "of type function"),
            ("optimizer", {"betas": [0.9, {0.99}]}, "optimizer.betas[1]",
             "of type set")):
        raises(lambda: tessera.wrap(make_net(), **{key: value}), key, *texts)
    raises(lambda: tessera.wrap(make_net(), {"optimizer": {"lr": print}}),
           "tessera.wrap(config): optimizer.lr is of type builtin")
    raises(lambda: tessera.plan(make_net(), None, ids_of(0, 0), world_size=2.5),
           "world_size is 2.5")
    engine = tessera.wrap(
        make_net(), {"training": {"clip_grad_norm": 1}, "device": "auto"},
        precision={"parameters": torch.bfloat16}, optimizer=SGD, **SMALL)
    with engine.gather():
        assert engine.module.embed.weight.dtype == torch.bfloat16
    raises(lambda: engine.save("never", keep_last="2"), "keep_last is '2'")
    raises(lambda: engine.load_state_dict(
        {name: value.numpy() for name, value in make_net().state_dict().items()}),
        "of type ndarray is not a tensor")


def other_wrappers(world):
    class InDataParallel(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):  # without a process group
            torch.nn.Module.__init__(self)
            self.module = module

    for model, *texts in (
            (torch.nn.Sequential(InDataParallel(make_net())),
             "'0' is of type InDataParallel", "`module`"),
            (torch.nn.DataParallel(make_net()), "the model is of type DataParallel"),
            (torch.nn.Sequential(torch.nn.LazyLinear(3)), "'0.weight'",
             "run a forward"),
            (torch.nn.Sequential(torch.nn.Embedding(9, 3, max_norm=1.0)),
             "'0' is of type Embedding with max_norm", "without max_norm")):
        raises(lambda: tessera.wrap(model), *texts)
    model, engine = trained()
    raises(lambda: engine.backward(3.0), "of type float", "item()")


def misspelled_options(world):
    raises(lambda: tessera.wrap(make_net(), zero_stag=3),
           "did you mean 'zero_stage'")
    raises(lambda: tessera.wrap(make_net(), optimizer={"learning_rate": 1}),
           "use 'optimizer.lr'")
    raises(lambda: tessera.wrap(make_net(), precison={}),
           "did you mean 'precision'")


def given_twice(world):
    """A key of a section, and the keyword for it."""
    raises(lambda: tessera.wrap(
        make_net(), zero_stage=1, sharding={"zero_stage": 3}),
        "wrap: zero_stage=1 and sharding={'zero_stage': 3}")
    raises(lambda: tessera.plan(
        make_net(), None, ids_of(0, 0), device_memory="1GiB", nvme_path="/a",
        memory={"nvme_path": "/b"}),
        "plan: nvme_path='/a' and memory={'nvme_path': '/b'}")
    # A configuration's is that of all runs, which the keyword replaces.
    engine = tessera.wrap(
        make_net(), {"sharding": {"zero_stage": 1}}, zero_stage=3, **SMALL)
    engine.unwrap()


def complex_parameters(world):
    model = make_net()
    model.phase = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    text = raises(lambda: tessera.wrap(model, **SMALL),
                  "'phase'", "ComplexFloat", "requires_grad_(False)")
    assert "::" not in text, text
    model.phase.requires_grad_(False)
    tessera.wrap(model, **SMALL).unwrap()


def missing_buffers(world):
    """Of a file of weights, as torch and load_state_dict() refuse them."""
    import safetensors.torch
    model, engine = trained()
    path = os.path.join(shared_folder(), "without_buffer.safetensors")
    engine.save_weights(path)
    before = model.seen.clone()
    if world.rank == 0:
        values = safetensors.torch.load_file(path)
        del values["seen"]
        safetensors.torch.save_file(values, path)
    engine.sum_over_ranks(torch.zeros(1))  # it is written
    raises(lambda: engine.load_weights(path), "missing: buffer 'seen'")
    report = engine.load_weights(path, strict=False)
    assert report.missing == ["seen"] and not report.unexpected
    assert torch.equal(model.seen, before)
    # One that is not persistent is in no file.
    lasting = torch.nn.Sequential(make_net())
    lasting.register_buffer("table", torch.ones(2), persistent=False)
    other = tessera.wrap(lasting, optimizer=SGD, **SMALL)
    other.save_weights(path)
    assert not other.load_weights(path).missing


def nonfinite_gradients(world):
    model, engine = trained()
    engine.step()
    before = engine.state_dict()
    factor = float("nan") if world.rank == 0 else 1.0
    engine.backward(loss_of(model, ids_of(0, world.rank)) * factor)
    raises(engine.step, "the gradient of parameter '", "is not finite")
    engine.backward(loss_of(model, ids_of(0, world.rank)) * factor)
    try:
        engine.step()
        raise AssertionError("no error")
    except tessera.NonfiniteGradientError:
        pass
    for name, value in engine.state_dict().items():
        # The forward counts what it has seen.
        assert name == "seen" or torch.equal(value, before[name]), name
    train(engine, 1, world.rank)  # the engine goes on
    model = make_net()
    engine = tessera.wrap(model, optimizer=SGD, on_nonfinite="skip", **SMALL)
    engine.backward(loss_of(model, ids_of(0, world.rank)) * factor)
    assert engine.step() is False
    engine.backward(loss_of(model, ids_of(0, world.rank)))
    assert engine.step() is True


def full_precision(world):
    """What is loaded and written reaches bfloat16's master weights exactly."""
    model = make_net()
    engine = tessera.wrap(model, optimizer=SGD, zero_stage=3,
                          precision={"parameters": "bfloat16"}, **SMALL)
    state = make_net(seed=9).state_dict()
    engine.load_state_dict(state)
    for name, value in engine.state_dict().items():
        assert torch.equal(value, state[name]), name
    for _ in range(30):
        engine.for_each_parameter(
            lambda name, value: value.add_(1e-4), writable=True)
    for name, value in engine.state_dict().items():
        if name != "seen":
            assert (value - state[name] - 3e-3).abs().max() < 1e-5, name
    # Operators use the new values.
    with engine.gather():
        for name, value in model.named_parameters():
            wanted = state[name] + 3e-3
            assert (value - wanted).abs().max() <= wanted.abs().max() / 128


def meta_tensors(world):
    raises(lambda: tessera.wrap(torch.nn.Linear(3, 3, device="meta")),
           "'weight' is on the meta device", "tessera.lazy()")


def compiled_modules(world):
    import torch._dynamo  # noqa: F401
    raises(lambda: tessera.wrap(torch.compile(make_net())), "torch.compile")
    # Afterwards, it has the same losses where operators are called.
    _, engine = trained()
    want = train(engine, 3, world.rank, first=2)
    model, engine = trained()
    compiled = torch.compile(model, backend="aot_eager")
    for step, loss in enumerate(want, 2):
        got = loss_of(compiled, ids_of(step, world.rank))
        engine.backward(got)
        engine.step()
        assert abs(got.item() - loss) < 1e-6, (step, got, loss)
    # With norms in float32 between parameters of 16 bits, too.
    losses = []
    for is_compiled in (False, True):
        torch.manual_seed(1)
        model = make_net()
        engine = tessera.wrap(
            model, optimizer=SGD, precision={"parameters": "bfloat16"}, **SMALL)
        forward = torch.compile(model, backend="aot_eager") if is_compiled \
            else model
        losses.append([])
        for step in range(3):
            loss = loss_of(forward, ids_of(step, world.rank)).float()
            engine.backward(loss)
            engine.step()
            losses[-1].append(loss.item())
    for got, want in zip(*losses):
        assert abs(got - want) < 5e-3, losses


def wrapped_twice(world):
    model, engine = trained()
    raises(lambda: tessera.wrap(model, **SMALL), "another engine")
    del engine


def reading_on_one_rank(world):
    """The last test: the ranks do not get over it."""
    if world.size == 1:
        return
    model, engine = trained()
    engine.step()
    def read():
        if world.rank == 0:
            model.blocks[1].up.weight.sum().item()
        train(engine, 1, world.rank)
    raises(read, "taken different paths", "rank 0")


def numpy_arrays(world):
    """An array that keeps its values, or an error: not those of others."""
    model = make_net()
    engine = tessera.wrap(model, optimizer=SGD, zero_stage=3, **SMALL)
    train(engine, 1, world.rank)
    weight = model.blocks[0].up.weight
    for read in (lambda: weight.detach().numpy(),
                 lambda: weight.data.cpu().numpy(),
                 lambda: weight.numpy(force=True),
                 lambda: weight.detach()[1:].numpy(),
                 lambda: np.asarray(weight.detach())):
        raises(read, "numpy()", "blocks.0.up.weight", "clone()", "gather()")
    clones = {name: one.detach().clone().numpy()
              for name, one in model.named_parameters()}
    with engine.gather():
        for name, one in model.named_parameters():
            assert (one.detach().numpy() == clones[name]).all(), name
    assert torch.ones(2).numpy().sum() == 2
    with torch.no_grad(), engine.gather(writable=True):
        weight.detach().numpy()[:] = 0.5
    assert weight.detach().clone().eq(0.5).all()


def loaders_out_of_order(world):
    sampler = tessera.BatchSampler(40, 2)
    data = list(range(40))
    try:
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=sampler, num_workers=1, in_order=False)
    except TypeError:  # torch before 2.6 has no such loaders
        return
    raises(lambda: iter(loader), "BatchSampler", "in_order")
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert len(list(loader)) == len(sampler)


if __name__ == "__main__":
    main([another_torch, optimizers_of_torch, moves_and_casts, state_dicts,
          copies, writes, replaced_parameters, changed_modules,
          scaled_gradients, files_for_folders, other_optimizers,
          nonfinite_gradients, full_precision, meta_tensors,
          groups_and_states_of_torch, states_without_moments,
          states_of_one_rank, values_of_one_rank, attributes,
          changes_in_gather_scopes, averages_and_gather_scopes,
          groups_of_checkpoints, other_modules_on_ranks, messages,
          options_of_others, other_wrappers,
          misspelled_options, given_twice, complex_parameters,
          missing_buffers, compiled_modules,
          wrapped_twice, reading_on_one_rank, numpy_arrays,
          loaders_out_of_order])

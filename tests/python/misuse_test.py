# SPDX-License-Identifier: Apache-2.0
"""Misuse is an error that names what to do instead, and nothing is lost."""
import copy
import io
import subprocess
import sys

import torch

import tessera
from ranks import SMALL, ids_of, loss_of, main, make_net, raises, train

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
              "Engine::step()")
    check(world, lambda model: torch.optim.SGD(
        model.parameters(), lr=1.0, foreach=False).step(), "Engine::step()")
    check(world, lambda model: torch.nn.utils.clip_grad_norm_(
        model.parameters(), 1.0), "Engine::clip_grad_norm()")


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
           "'weight' of a Linear was replaced")


def compiled_modules(world):
    import torch._dynamo  # noqa: F401
    raises(lambda: tessera.wrap(torch.compile(make_net())), "torch.compile")


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


if __name__ == "__main__":
    main([another_torch, optimizers_of_torch, moves_and_casts, state_dicts,
          copies, writes, replaced_parameters, compiled_modules, wrapped_twice,
          reading_on_one_rank])

# SPDX-License-Identifier: Apache-2.0
"""What tests of the Python package share. They run as the ranks of a job:

    tessera launch --nproc 2 -- python3 TEST.py [NAME...]
"""
import os
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402

import tessera  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = torch.nn.LayerNorm(features)
        self.up = torch.nn.Linear(features, 3 * features)
        self.down = torch.nn.Linear(3 * features, features)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """A stack with a tied head and a buffer that its forward changes."""

    def __init__(self, features=24, blocks=3, vocabulary=50):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, features)
        self.blocks = torch.nn.ModuleList(
            Block(features) for _ in range(blocks))
        self.head = torch.nn.Linear(features, vocabulary)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, ids):
        self.seen = self.seen + ids.numel()
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_net(seed=0, **sizes):
    torch.manual_seed(seed)
    return Net(**sizes)


def ids_of(step, rank, rows=3):
    return torch.randint(
        0, 50, (rows, 7),
        generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model, ids):
    # The next token of each.
    return torch.nn.functional.cross_entropy(
        model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train_plain(model, optimizer, steps, size, clip=None, first=0):
    """Plain PyTorch on the batches of all ranks; losses by step and rank."""
    losses = []
    for step in range(first, first + steps):
        of_ranks = []
        for rank in range(size):
            loss = loss_of(model, ids_of(step, rank))
            (loss / size).backward()
            of_ranks.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(of_ranks)
    return losses


def train(engine, steps, rank, clip=None, first=0):
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(engine.module, ids_of(step, rank))
        engine.backward(loss)
        if clip:
            engine.clip_grad_norm(clip)
        engine.step()
        losses.append(loss.item())
    return losses


# Parameters of a small model in several groups; the log is for errors.
SMALL = dict(log_memory=False, sharding={"min_group_numel": 500})


def raises(what, *texts):
    """The message of the error that `what` raises, which has all of `texts`."""
    try:
        what()
    except (ArithmeticError, AttributeError, RuntimeError, TypeError,
            ValueError, Warning) as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in: {error}"
        return str(error)
    raise AssertionError("no error was raised")


def shared_folder():
    """A folder that all ranks of the job see, new for each job."""
    name = os.environ.get("MASTER_PORT", str(os.getpid()))
    folder = os.path.join(tempfile.gettempdir(), f"tessera_python_{name}")
    os.makedirs(folder, exist_ok=True)
    return folder


def main(tests):
    """Runs functions of (world), those that the command line names, or all."""
    torch.set_num_threads(1)
    world = tessera.init(device="cpu", cpu_matmul="libtorch")
    names = sys.argv[1:]
    for test in tests:
        if names and test.__name__ not in names:
            continue
        begin = time.monotonic()
        test(world)
        if world.rank == 0:
            print(f"ok {test.__name__} ({time.monotonic() - begin:.1f} s)",
                  flush=True)

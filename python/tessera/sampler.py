# SPDX-License-Identifier: Apache-2.0
"""Batches of sample numbers that continue at the same sample on any ranks."""
import hashlib
import sys
import weakref

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tessera import _C
from tessera.attributes import FixedAttributes
from tessera.job import init
from tessera.options import whole_number


# Arguments of other samplers, and what to do instead.
_OF_OTHERS = {
    "drop_last":
        "samples that do not fill a step are left out of an epoch, others of "
        "the next",
    "shuffle":
        "each epoch has an order of its own; where samples come in theirs, as "
        "in an evaluation, give the DataLoader a torch.utils.data.Subset("
        "dataset, range(world.rank, len(dataset), world.size)) and a batch_size",
    "generator": "pass a seed, the same on all ranks",
    **dict.fromkeys(
        ("num_replicas", "rank"),
        "it takes those of the job; with ranks that divide layers, pass "
        "share=engine.batches"),
}


class BatchSampler(FixedAttributes):
    """The batches of this rank, for torch.utils.data.DataLoader(batch_sampler=).

        sampler = tessera.BatchSampler(len(dataset), batch_size=8)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        while sampler.epoch < 3:
            for batch in loader:
                engine.backward(loss_of(model, batch))
                engine.step()
            engine.save(folder, [sampler])  # engine.load(folder, [sampler])

    In each epoch the samples come in an order of their own, a function of
    `seed` and the epoch; the batches of all ranks together take the next ones.
    Iterating goes through the rest of one epoch. Samples that do not fill a step
    at its end are left out of this epoch, others of the next.

    It is a state of checkpoints, and counts by itself: what the loop was given
    before the last Engine.step() is trained on, and what a DataLoader's workers
    have read ahead is not. An iteration that was left early is taken up after
    what was trained on. Loaded by another number of ranks, the sampler
    continues at the same sample. One of other samples or another seed is refused.

    A DataLoader without a generator gets one whose numbers are a function of
    `seed` and the position. It would draw from torch's own each time that an
    iteration begins, and a resumed run would have other random numbers.
    """

    name = "sampler"
    _attributes = ()

    def __init__(self, samples, batch_size, *, seed=0, accumulate=1,
                 share=None, **others):
        """
        accumulate: batches of one optimizer step; an epoch has whole steps, and
            so has its rest after a checkpoint of other ranks, batch sizes or
            numbers of batches was loaded.
        share: (index, count) of this rank's batches; by default its rank.
            With ranks that divide layers, Engine.batches.
        """
        for name in others:
            raise TypeError(
                f"BatchSampler: {name!r} is not an argument; "
                f"{_OF_OTHERS.get(name, 'seed, accumulate and share are')}.")
        if hasattr(samples, "__len__"):
            raise TypeError(
                f"BatchSampler: samples is of type {type(samples).__name__}; "
                "pass their number, len() of it.")
        samples, batch_size, seed, accumulate = (
            _checked(name, value, least) for name, value, least in (
                ("samples", samples, 1), ("batch_size", batch_size, 1),
                ("seed", seed, 0), ("accumulate", accumulate, 1)))
        world = init()
        index, count = (world.rank, world.size) if share is None \
            else _checked_share(share)
        of_step = batch_size * count * accumulate
        if samples < of_step:
            raise _C.Error(
                f"BatchSampler: {samples} samples do not fill one step of "
                f"{of_step}: batches of {batch_size} on each of {count} "
                f"{'rank' if count == 1 else 'ranks'}"
                f"{f', {accumulate} in a step' * (accumulate > 1)}. Lower "
                f"batch_size{' or accumulate' * (accumulate > 1)}, or give it "
                "more samples.")
        self._samples = samples
        self._batches = _C.RankBatches(
            samples, batch_size, index, count, seed, accumulate)
        self._key = (seed, index)
        self._generator = torch.Generator()
        self._trained = 0  # batches since the first epoch
        self._iteration = None  # the last one that has begun
        self._is_told = False  # done() has been called
        _samplers.add(self)

    def __len__(self):
        return self._batches.per_epoch

    def __iter__(self):
        begin = self._next()
        per_epoch = self._batches.per_epoch
        iteration = _Iteration(begin, (begin // per_epoch + 1) * per_epoch)
        self._iteration = iteration
        caller = sys._getframe(1)
        if isinstance(caller.f_locals.get("self"), _BaseDataLoaderIter):
            iteration.follow(caller.f_locals["self"])
            loader = caller.f_locals.get("loader")
            if loader is not None:
                _check_in_order(loader, caller.f_locals["self"])
                self._give_generator(loader, begin)
        return self._indices(iteration)

    def _indices(self, iteration):
        for number in range(iteration.begin, iteration.end):
            if self._iteration is not iteration:
                raise _C.Error(
                    "BatchSampler: another iteration has begun, or the position "
                    "was loaded, while this one was open. Begin a loop after "
                    "load(), and give loops that overlap a sampler each.")
            iteration.drawn += 1
            yield self._batches.batch(number)

    def _give_generator(self, loader, begin):
        if loader.generator is None:
            loader.generator = self._generator
        if loader.generator is self._generator:
            digest = hashlib.blake2b(
                repr((*self._key, begin)).encode(), digest_size=8).digest()
            self._generator.manual_seed(int.from_bytes(digest, "little"))

    @property
    def epoch(self):
        """That of the next iteration."""
        return self._next() // self._batches.per_epoch

    def done(self):
        """Counts one batch as trained on. Only for loaders that read ahead and
        are not torch's DataLoader: once it was called, nothing else counts."""
        self._is_told = True
        self._trained += 1

    def state_dict(self):
        epoch, samples = self._batches.position_of(self._position())
        return {"epoch": epoch, "samples": samples,
                "samples_of_epoch": self._samples, "seed": self._key[0]}

    def load_state_dict(self, state):
        for key, what, now in (
                ("samples_of_epoch", "", self._samples),
                ("seed", "the seed ", self._key[0])):
            saved = state.get(key, now)  # earlier versions did not save them
            if saved != now:
                raise _C.Error(
                    f"load: the checkpoint's BatchSampler had {what}{saved}"
                    f"{'' if what else ' samples'}, this one has {what}{now}, "
                    "and would continue with other samples. Make it with "
                    "the same ones, or load the checkpoint without it.")
        self._trained = self._batches.begin_at(
            state["epoch"], state["samples"])
        self._iteration = None

    def _count_step(self):
        if self._iteration is not None and not self._is_told:
            self._trained = self._iteration.position()

    def _position(self):
        """Without engines there are no steps to count."""
        if self._iteration is None or self._is_told or _engines_step:
            return self._trained
        return self._iteration.position()

    def _next(self):
        """Where the next iteration begins: at the latest in the next epoch."""
        if self._iteration is not None and not self._is_told and (
                self._iteration.position() == self._iteration.end):
            return self._iteration.end
        return self._position()


def _checked(name, value, least):
    value = whole_number("BatchSampler", name, value)
    if not least <= value < 2**64:
        raise _C.Error(
            f"BatchSampler: {name} is {value}; it must be at least {least}"
            f"{' and below 2**64' * (value >= least)}.")
    return value


def _checked_share(share):
    try:
        index, count = (
            whole_number("BatchSampler", "share", one) for one in share)
    except (TypeError, ValueError):
        index, count = -1, 0
    if not 0 <= index < count:
        raise _C.Error(
            f"BatchSampler: share is {share!r}; it must be (index, count) of this "
            "rank's batches, with an index from 0 to count - 1, as "
            "engine.batches.")
    return index, count


def _check_in_order(loader, reader):
    """A position says how many batches were trained on, from the first."""
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        reader._shutdown = True  # it has no workers yet, which would be ended
        raise _C.Error(
            "BatchSampler: the DataLoader has in_order=False, with which the "
            "loop gets batches in another order than they are drawn: a "
            "resumed run would repeat some and leave out others. Leave "
            "in_order at True.")


class _Iteration:
    """Batches `begin` to `end`, and how many of them a loop has been given."""

    def __init__(self, begin, end):
        self.begin = begin
        self.end = end
        self.drawn = 0
        self._reader = None

    def follow(self, reader):
        """reader: the iterator of a DataLoader, which may read ahead."""
        # Not the object: with the loop that it is of, its workers end.
        self._reader = vars(reader)

    def position(self):
        return self.begin + (
            self.drawn if self._reader is None
            else self._reader.get("_num_yielded", 0))


_samplers = weakref.WeakSet()
_engines_step = False


def follow_steps():
    """From now on, Engine.step() decides what has been trained on."""
    global _engines_step
    _engines_step = True


def count_step():
    for sampler in _samplers:
        sampler._count_step()

# SPDX-License-Identifier: Apache-2.0
"""Batches of sample numbers that continue at the same sample on any ranks."""
from tessera import _C
from tessera.job import init


class BatchSampler:
    """The batches of this rank, for torch.utils.data.DataLoader(batch_sampler=).

    In each epoch the samples come in an order of their own, a function of
    `seed` and the epoch; the batches of all ranks together take the next ones.
    Iterating goes through the rest of one epoch. It is a state of checkpoints:
    pass it to Engine.save() and Engine.load(); loaded by another number of
    ranks, it continues at the same sample.

    With workers, a DataLoader asks for batches ahead of their use: call
    done() after each batch that was trained on, so that a checkpoint does not
    count those that were not.
    """

    name = "sampler"

    def __init__(self, samples, batch_size, *, seed=0, accumulate=1,
                 share=None):
        """share: (index, count) of this rank's batches; by default its rank.
        With ranks that divide layers, Engine.batches.
        """
        world = init()
        index, count = share or (world.rank, world.size)
        self._batches = _C.RankBatches(
            samples, batch_size, index, count, seed, accumulate)
        self._done = 0

    def __len__(self):
        return self._batches.per_epoch

    def __iter__(self):
        per_epoch = self._batches.per_epoch
        for number in range(
                self._done, (self._done // per_epoch + 1) * per_epoch):
            yield self._batches.batch(number)

    @property
    def epoch(self):
        return self._done // self._batches.per_epoch

    def done(self):
        """Counts one batch as trained on."""
        self._done += 1

    def state_dict(self):
        epoch, samples = self._batches.position_of(self._done)
        return {"epoch": epoch, "samples": samples}

    def load_state_dict(self, state):
        self._done = self._batches.begin_at(state["epoch"], state["samples"])

# SPDX-License-Identifier: Apache-2.0
"""Joining the job."""
import json

import torch

from tessera import _C
from tessera.options import plain

_world = None


def init(**options):
    """Joins the job, once per process, and returns this rank's view of it.

    Attributes: rank, size, local_rank, local_size, device (of this rank's
    module). If torch.distributed is initialized, the ranks are its ranks and
    meet in its store; otherwise they are those of the environment of torchrun,
    `tessera launch`, Slurm or MPI, or this process is the only one. wrap()
    calls it. Blocks until all ranks have called it.

    Options are those of a configuration: device ("auto", "cpu", "cuda"),
    cpu_matmul, cuda_matmul, fused, timeout_s, keep_freed_memory,
    reuse_gradients.
    """
    global _world
    if _world is None:
        _world = _C.init(*_meeting_place(), json.dumps(
            plain(options, "", "tessera.init()")))
    elif options:
        raise _C.Error(
            f"tessera.init: {', '.join(options)} given, but this process has "
            "joined its job already. Call init() with options once, before "
            "wrap() and lazy().")
    return _world


def use_operators():
    """Selects the operators that init() without options would, for a plan; after
    init(), they are its own. On a CUDA device they come with the job alone."""
    if _world is None and not torch.cuda.is_available():
        _C.use_default_operators()


def _meeting_place():
    """The store, rank and number of ranks of torch.distributed, if it is used."""
    if not (torch.distributed.is_available()
            and torch.distributed.is_initialized()):
        return None, 0, 1
    size = torch.distributed.get_world_size()
    if size == 1:
        return None, 0, 1
    store = torch.distributed.distributed_c10d._get_default_store()
    return (torch.distributed.PrefixStore("tessera", store),
            torch.distributed.get_rank(), size)

# SPDX-License-Identifier: Apache-2.0
"""Tessera: trains PyTorch modules that do not fit, sharded over all ranks.

    import tessera

    engine = tessera.wrap(model, optimizer={"type": "adamw", "lr": 1e-4})
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        engine.backward(loss)
        engine.clip_grad_norm(1.0)
        engine.step()

The module stays as it is: its parameters are gathered when an operator uses
them. Under torchrun or `tessera launch` the ranks find each other by
themselves.
"""
from tessera._check_torch import check_torch

check_torch()

from tessera._C import (  # noqa: E402
    Error, LoadWeightsReport, NonfiniteGradientError, PendingSave,
    StepMemoryPlan)
from tessera.engine import Engine, wrap  # noqa: E402
from tessera.job import init  # noqa: E402
from tessera.lazy import lazy, materialize  # noqa: E402
from tessera.planning import plan  # noqa: E402
from tessera.sampler import BatchSampler  # noqa: E402

__all__ = [
    "BatchSampler", "Engine", "Error", "LoadWeightsReport",
    "NonfiniteGradientError", "PendingSave", "StepMemoryPlan", "init", "lazy",
    "materialize", "plan", "wrap",
]

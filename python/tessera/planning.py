# SPDX-License-Identifier: Apache-2.0
"""The memory of a training step, before anything is trained."""
import contextlib
import json
import os
import traceback

import torch

from tessera import _C
from tessera.engine import merge_options
from tessera.options import whole_number
from tessera.tree import Tree, persistent_buffers


def plan(model, config, batch, *, loss=None, world_size=1, rank=0,
         device=None, accumulate=1, clips_gradients=False, steps=2,
         zero_stage=None, **options):
    """What memory a training step takes, activations included, by running it
    with shapes only.

    Takes seconds, no memory and no other ranks: wrap() and the steps are run as
    they would be in a job, but operators do not compute. What the forward reads
    from tensors is zero (`assumptions` of the result). The model stays as it
    is, and may be made by lazy(). Plan before wrap().

    config: as for wrap(), or None.
    batch: that of one rank, tensors on the CPU: a dict of keyword arguments, a
        sequence of arguments, or one argument of the model's forward.
    loss: a function of what the forward returns; by default its attribute or
        key "loss", or itself.
    world_size, rank: the job, and for which of its ranks.
    device: "cpu" or "cuda", of the real run; by default "cuda" if there is one.
        With "cuda", workspaces of libraries and what the allocator rounds up
        are not included.
    accumulate: micro-batches of an optimizer step.
    clips_gradients: whether clip_grad_norm() is called before it.
    steps: run one after another; the first records in which order parameters
        are used.
    zero_stage, options: as for wrap().

    Returns a StepMemoryPlan: peak_bytes of the device; peak, the moment of it
    (module, operation, engine: bytes by purpose, activations: all the rest);
    memory, what wrap() plans by tier and purpose; activations_after_forward;
    timeline, moments of the last step; flops, operators, kernels of the engine
    and collectives of the last step; assumptions.

        found = tessera.plan(model, {"optimizer": {"type": "adamw"}},
                             {"input_ids": ids}, zero_stage=3)
        print(found.peak_bytes, found.peak.engine, found.peak.activations)
    """
    values, source = merge_options("plan", model, config, zero_stage, options)
    values.setdefault("log_memory", False)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type not in ("cpu", "cuda"):
        raise _C.Error(f"plan: device is {device!r}; it must be cpu or cuda.")
    rank, world_size, accumulate, steps = (
        whole_number("plan", name, value) for name, value in (
            ("rank", rank), ("world_size", world_size),
            ("accumulate", accumulate), ("steps", steps)))
    job = _C.PlannedJob(
        rank=rank, world_size=world_size,
        is_cuda=torch.device(device).type == "cuda", accumulate=accumulate,
        clips_gradients=clips_gradients, steps=steps)

    def forward():
        try:
            return _loss_of(_call(model, batch), loss)
        except NotImplementedError as error:
            if "meta" not in str(error).lower():
                raise
            # Of torch, for shapes that depend on values.
            raise _C.Error(
                f"plan: {_place_of(error)}: {error}. A plan runs the forward "
                "with shapes only; where a shape depends on values, as in "
                "x[x > 0] or nonzero(), plan with a forward that takes a fixed "
                "one, or measure a step: engine.memory after wrap()."
            ) from error

    with _buffers_kept(model), torch.random.fork_rng(devices=[]), \
            torch.enable_grad():
        return _C.plan(
            Tree(model).root, json.dumps(values), source, forward, job)


def _place_of(error):
    """The last line of the caller's code, rather than torch's."""
    own = [os.path.dirname(module.__file__) + os.sep
           for module in (torch, _C)]
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((one for one in reversed(frames)
                  if not one.filename.startswith(tuple(own))), frames[-1])
    return f"{frame.filename}:{frame.lineno}, `{frame.line}`"


def _call(model, batch):
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return model(**batch)
    if isinstance(batch, (list, tuple)):
        return model(*batch)
    return model(batch)


def _loss_of(output, loss):
    if loss is not None:
        return loss(output)
    if isinstance(output, dict) and "loss" in output:
        output = output["loss"]
    else:
        output = getattr(output, "loss", output)
    if not isinstance(output, torch.Tensor) or output.numel() != 1:
        raise _C.Error(
            f"plan: the model returns a value of type {type(output).__name__}, "
            "not a loss of one element; pass loss=, a function of what it "
            "returns.")
    return output


@contextlib.contextmanager
def _buffers_kept(model):
    """Gives the model its buffers back, which a forward may replace or change.

    Those that are not saved are constants for the engine: copies take their
    place. It lends memory for the others itself.
    """
    kept = [(module, dict(module._buffers)) for module in model.modules()]
    for module, buffers in kept:
        persistent = dict(persistent_buffers(module))
        for name, buffer in buffers.items():
            if buffer is not None and name not in persistent:
                module._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.update(buffers)

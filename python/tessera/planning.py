# SPDX-License-Identifier: Apache-2.0
"""The memory of a training step, and options that fit, before anything is
trained."""
import contextlib
import copy
import dataclasses
import difflib
import inspect
import json
import os
import traceback

import torch

from tessera import _C
from tessera.engine import merge_options, refuse_twice
from tessera.job import use_operators
from tessera.options import whole_number
from tessera.tree import Tree, persistent_buffers


def plan(model, config, batch, *, loss=None, world_size=1, rank=0,
         device=None, accumulate=1, clips_gradients=False, steps=2,
         zero_stage=None, device_memory=None, host_memory=None,
         nvme_memory=None, nvme_path=None, devices_per_node=8, reserve=None,
         margin=None, batch_size=None, recompute=None, layers=None, **options):
    """What memory a training step takes, activations included, by running it
    with shapes only; with device_memory, options with which it fits.

    Takes seconds, no memory and no other ranks: wrap() and the steps are run as
    they would be in a job, but operators do not compute. What the forward reads
    from tensors that it has computed, by item(), tolist() or numpy(), is zero
    (`assumptions` of the result); the batch has its values. The model stays as
    it is, and may be made by lazy(). Plan before wrap(), and after init() if that
    is given options.

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
        are used. A search runs 2, for rank 0.
    zero_stage, options: as for wrap().

    Returns a StepMemoryPlan: peak_bytes of the device; peak, the moment of it
    (module, operation, engine: bytes by purpose, activations: all the rest);
    memory, what wrap() plans by tier and purpose; activations_after_forward;
    timeline, moments of the last step; flops, operators, kernels of the engine
    and collectives of the last step; assumptions.

        found = tessera.plan(model, {"optimizer": {"type": "adamw"}},
                             {"input_ids": ids}, zero_stage=3)
        print(found.peak_bytes, found.peak.engine, found.peak.activations)

    With device_memory, the search of `tessera plan` for this model, of what
    wrap() can choose: ZeRO stages and budgets; state, gradients, parameters and
    activations in host memory; recomputation; rows of a micro-batch. A step
    keeps its rows, and what config places stays there. Returns a Plan.

    device_memory: bytes of a device, or "24GiB".
    host_memory: of a node, for its ranks together; without, nothing is moved
        there.
    nvme_memory: of a node's disks, for what host_memory has no room for; in the
        folder nvme_path.
    devices_per_node, reserve, margin: as for `tessera plan`.
    device: kind of device, "h100" or another of `tessera plan --device`; by
        default "a100", as there.
    batch: also a function of a number of rows that makes one of so many; then
        the search tries other micro-batches, unless the model has BatchNorm
        layers that train, whose statistics are those of a micro-batch.
    batch_size: rows of a rank's micro-batch; by default 1, or those of batch,
        which has to have so many.
    recompute, layers: a function of a number of layers, which has the model
        recompute so many of its `layers`; called with 0 at the end. By default
        a model of transformers' gradient checkpointing, which counts as one
        layer and is left as it was.

        found = tessera.plan(model, {"optimizer": {"type": "adamw"}}, make_batch,
                             device_memory="24GiB", world_size=8, device="h100")
        print(found)
        best = found.best
        if best:
            # Micro-batches of best.batch_size rows, best.accumulate of a step.
            if best.recomputed_layers and not model.is_gradient_checkpointing:
                model.gradient_checkpointing_enable()
            engine = tessera.wrap(model, best.options)
    """
    _check_names(options)
    refuse_twice("plan", options, "memory", "nvme_path", nvme_path)
    values, source = merge_options("plan", model, config, zero_stage, options)
    use_operators()
    if device_memory is not None:
        for name, value, searched in (("rank", rank, 0), ("steps", steps, 2)):
            if value != searched:
                raise _C.Error(
                    f"plan: {name} is {value}; with device_memory, a search, it "
                    f"is {searched}. Leave it out.")
        machine = {
            "world_size": world_size, "devices_per_node": devices_per_node,
            "device": _kind_of(device), "device_memory": device_memory,
            "host_memory": host_memory, "nvme_memory": nvme_memory,
            "nvme_path": nvme_path, "reserve": reserve, "margin": margin}
        if recompute is None and layers is None:
            recompute, layers, recomputed = _checkpointing_of(model)
        elif recompute is None or layers is None:
            raise _C.Error(
                "plan: recompute, a function of a number of layers, and layers, "
                "how many there are, go together.")
        else:
            recomputed = 0
        return _search(model, values, source, batch, loss, machine, {
            "accumulate": accumulate, "clips_gradients": clips_gradients,
            "batch_size": batch_size, "layers": layers,
            "recomputed_layers": recomputed}, recompute)
    for name, value in (("host_memory", host_memory),
                        ("nvme_memory", nvme_memory),
                        ("nvme_path", nvme_path), ("reserve", reserve),
                        ("margin", margin), ("recompute", recompute),
                        ("layers", layers), ("batch_size", batch_size)):
        if value is not None:
            raise _C.Error(
                f"plan: {name} is for a search; pass device_memory too.")
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
        return _planned_loss(model, batch, loss)

    with _buffers_kept(model), torch.random.fork_rng(devices=[]), \
            torch.enable_grad():
        return _C.plan(
            Tree(model).root, json.dumps(values), source, forward, job)


def _check_names(options):
    """Options that are nearly arguments of plan(), which come before what the
    others say of each other; wrap() knows the names of its own."""
    own = [name for name, parameter in inspect.signature(plan).parameters.items()
           if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        meant = difflib.get_close_matches(name, own, n=1, cutoff=0.8)
        if meant:
            raise _C.Error(
                f"plan: {name!r} is not an option; did you mean {meant[0]!r}?")


def _planned_loss(model, batch, loss):
    try:
        with _reads_noted():
            return _loss_of(_call(model, batch), loss)
    except RuntimeError as error:
        if isinstance(error, _C.Error):
            raise
        # torch hands on the engine's errors without their type.
        if "a dry run" in str(error):
            told = str(error).replace("torch::", "torch.")
            raise _C.Error(f"plan: {_place_of(error)}: {told}") from error
        if not isinstance(error, NotImplementedError) or \
                "meta" not in str(error).lower():
            raise
        # Of torch, for shapes that depend on values.
        raise _C.Error(
            f"plan: {_place_of(error)}: {error}. A plan runs the forward "
            "with shapes only; where a shape depends on values, as in "
            "x[x > 0] or nonzero(), plan with a forward that takes a fixed "
            "one, or measure a step: engine.memory after wrap()."
        ) from error


@contextlib.contextmanager
def _reads_noted():
    """numpy() and tolist() read memory without an operator of torch: here they
    read one element by item() too, which the plan notes if it has no value."""
    def noting(read):
        def read_noted(tensor, *args, **kwargs):
            if tensor.numel() > 0 and tensor.layout == torch.strided:
                tensor.detach().as_strided(
                    (1,), (1,), tensor.storage_offset()).item()
            return read(tensor, *args, **kwargs)
        return read_noted

    names = ("numpy", "tolist")  # __array__() calls numpy()
    own = {name: vars(torch.Tensor)[name] for name in names
           if name in vars(torch.Tensor)}
    for name in names:
        setattr(torch.Tensor, name, noting(getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        for name in names:
            if name in own:
                setattr(torch.Tensor, name, own[name])
            else:
                delattr(torch.Tensor, name)


def _place_of(error):
    """The last line of the caller's code, rather than torch's."""
    own = [os.path.dirname(module.__file__) + os.sep
           for module in (torch, _C)]
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((one for one in reversed(frames)
                  if not one.filename.startswith(tuple(own))), frames[-1])
    return f"{frame.filename}:{frame.lineno}, `{frame.line}`"


@dataclasses.dataclass(frozen=True)
class Pick:
    """A way to train a model, planned."""

    options: dict  #: for wrap(), as they are
    batch_size: int  #: rows of a rank's micro-batch
    accumulate: int  #: micro-batches of a step
    recomputed_layers: int  #: of plan()'s `layers`
    changed: tuple  #: "key=value", those of `options` that the search set
    peak_bytes: int  #: of a device
    host_bytes: int  #: of a rank's host memory
    nvme_bytes: int  #: of a rank's files
    step_seconds: float  #: estimated
    rows_per_second: float  #: of the job, estimated
    problem: str  #: empty: it fits; else what is wrong
    step: object  #: its StepMemoryPlan; None if the options were refused

    @property
    def fits(self):
        return not self.problem

    def __str__(self):
        text = (f"{self.batch_size} x {self.accumulate} rows, recomputing "
                f"{self.recomputed_layers} layers, {_size(self.peak_bytes)} of a "
                f"device, {_size(self.host_bytes)} of host memory, "
                f"{self.step_seconds:.3g} s a step")
        for part in (" ".join(self.changed), self.problem):
            text += f": {part}" if part else ""
        return text


@dataclasses.dataclass(frozen=True)
class Plan:
    """What plan() finds for a device's memory."""

    picks: tuple  #: the options as they are, first, and others
    #: The fastest that fits; of the same layout, the one with the fewest
    #: micro-batches that is slower by at most 15 %. None if none fits.
    best: Pick
    nearest: Pick  #: if nothing fits, the one that lacks least; or None
    #: If nothing fits: what would, by the argument or option that changes, as
    #: "world_size=16", "host_memory=32GiB", "precision.parameters=bfloat16".
    changes: dict
    limit_bytes: int  #: a device's memory without reserve and margin

    def __str__(self):
        lines = [f"a device has {_size(self.limit_bytes)}"]
        if self.best:
            lines.append(f"best: {self.best}")
        elif self.nearest:
            lines.append(f"nothing fits; nearest: {self.nearest}")
        else:
            lines.append("nothing can run")
        lines += [f"fits with {change}: {pick}"
                  for change, pick in self.changes.items()]
        lines += [f"tried: {pick}" for pick in self.picks
                  if pick is not self.best and pick is not self.nearest]
        return "\n".join(lines)


def _size(count):
    mib = count / 2**20
    return f"{mib / 2**10:.2f} GiB" if mib >= 2**10 else f"{mib:.2f} MiB"


def _kind_of(device):
    if device is not None and str(device).startswith("cuda"):
        raise _C.Error(
            f"plan: device is {str(device)!r}; a search needs the kind, such as "
            "'a100' or 'h100', whose rates it estimates times from.")
    return "a100" if device is None else str(device)


def _checkpointing_of(model):
    """Gradient checkpointing of a model of transformers, as one layer."""
    if not getattr(model, "supports_gradient_checkpointing", False):
        return None, 0, 0
    names = ("gradient_checkpointing", "_gradient_checkpointing_func")
    # Of each module, as a model may recompute some, with a function of its own.
    own = [(module, {name: vars(module)[name] for name in names
                     if name in vars(module)}) for module in model.modules()]

    def is_recomputing():
        return any(getattr(module, "gradient_checkpointing", False)
                   for module, _ in own)

    was_recomputing = is_recomputing()

    def recompute(count):
        if (count > 0) == is_recomputing():
            return
        if count > 0 and not was_recomputing:
            model.gradient_checkpointing_enable()
        elif count == 0 and was_recomputing:
            for module, _ in own:
                if getattr(module, "gradient_checkpointing", False):
                    module.gradient_checkpointing = False
        else:
            if not was_recomputing:
                model.gradient_checkpointing_disable()
            for module, values in own:
                for name in names:
                    vars(module).pop(name, None)
                vars(module).update(values)

    return recompute, 1, int(was_recomputing)


def _search(model, values, source, batch, loss, machine, training, recompute):
    makes_batches = callable(batch) and not isinstance(batch, torch.Tensor)
    if training["batch_size"] is None:
        training["batch_size"] = 1 if makes_batches else _rows_of(batch)[0]
    for name in ("batch_size", "accumulate", "layers"):
        training[name] = whole_number("plan", name, training[name])
    if not makes_batches:
        _check_rows(training["batch_size"], batch)
    given = training["recomputed_layers"]
    current = batch
    recomputed = None  # not known
    interrupt = None
    kept = contextlib.ExitStack()

    def have_recomputed(layers):
        nonlocal recomputed
        if recompute is not None and layers != recomputed:
            recomputed = None
            recompute(layers)
            recomputed = layers

    def prepare(rows, layers):
        nonlocal current, interrupt
        if interrupt is not None:
            raise interrupt
        try:
            kept.close()
            kept.enter_context(_buffers_kept(model))
            have_recomputed(layers)
            if makes_batches:
                current = batch(rows)
        except Exception:  # a way to train that the search leaves out
            raise
        except BaseException as error:  # Ctrl-C, which ends the search
            interrupt = error
            raise

    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            found = _C.search_plan(
                Tree(model).root, json.dumps(values), source,
                lambda rows: _planned_loss(model, current, loss), prepare,
                _C.PlannedModule(
                    changes_rows=makes_batches
                    and not _has_batch_statistics(model), **training),
                json.dumps(machine))
    finally:
        kept.close()
        have_recomputed(given)
    if interrupt is not None:
        raise interrupt
    picks = tuple(_pick(pick, values) for pick in found.picks)
    return Plan(
        picks=picks,
        best=None if found.best is None else picks[found.best],
        nearest=None if found.nearest is None else picks[found.nearest],
        changes={each.change.replace("devices=", "world_size="):
                 _pick(each.pick, values) for each in found.changes},
        limit_bytes=found.limit_bytes)


def _pick(pick, values):
    options = copy.deepcopy(values)
    for change in pick.changed:
        path, _, text = change.partition("=")
        *parents, key = path.split(".")
        inner = options
        for parent in parents:
            if inner.get(parent) is None:
                inner[parent] = {}
            inner = inner[parent]
        try:
            inner[key] = json.loads(text)
        except json.JSONDecodeError:
            inner[key] = text
    return Pick(
        options=options, batch_size=pick.batch_size, accumulate=pick.accumulate,
        recomputed_layers=pick.recomputed_layers, changed=tuple(pick.changed),
        peak_bytes=pick.device_bytes, host_bytes=pick.host_bytes,
        nvme_bytes=pick.nvme_bytes,
        step_seconds=pick.step_seconds, rows_per_second=pick.rows_per_second,
        problem=pick.problem, step=pick.step)


def _rows_of(batch):
    """Of each of its tensors; one row if there are none."""
    if _is_mapping(batch):
        values = [batch[key] for key in batch.keys()]
    else:
        values = batch if isinstance(batch, (list, tuple)) else [batch]
    return [len(value) for value in values
            if isinstance(value, torch.Tensor) and value.dim() > 0] or [1]


def _check_rows(batch_size, batch):
    """A batch that is given is planned with the rows that it has."""
    rows = _rows_of(batch)
    if batch_size >= 1 and batch_size not in rows:
        raise _C.Error(
            f"plan: batch_size is {batch_size}, but the batch has {rows[0]} "
            "rows, and these are planned. Leave batch_size out, give a batch of "
            f"{batch_size} rows, or pass a function of a number of rows that "
            "makes a batch of so many.")


def _is_mapping(batch):
    return isinstance(batch, dict) or hasattr(batch, "keys")


def _has_batch_statistics(model):
    """Whether what it trains depends on which rows share a micro-batch."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
               and module.training for module in model.modules())


def _call(model, batch):
    if _is_mapping(batch):
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

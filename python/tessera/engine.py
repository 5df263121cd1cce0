# SPDX-License-Identifier: Apache-2.0
"""The engine of a wrapped module."""
import contextlib
import difflib
import functools
import json
import os
import sys
import weakref
import zlib

import torch

from tessera import _C, reads, sampler
from tessera.attributes import FixedAttributes
from tessera.job import init
from tessera.options import plain, whole_number
from tessera.states import ExtraStates, states_of
from tessera.torch_optimizer import EngineOptimizer, options_of
from tessera.tree import Tree, persistent_buffers


def wrap(model, config=None, *, zero_stage=None, tensor_plan=None, **options):
    """Shards the parameters of `model` over all ranks and returns its engine.

    The module is used as before: operators gather the parameters that they
    use. Collective: every rank calls it with the same module and options.

    config: a configuration as for `tessera train`, a path or a dict, of which
        the engine's sections are read.
    zero_stage: 1, 2 or 3; short for sharding={"zero_stage": ...}.
    tensor_plan: {"layers.*.up": "column", "layers.*.down": "row", ...}, with
        parallel={"tensor": N}: how ranks divide layers. A value may be a pair
        with the number of features that stay together, as those of a head.
        Divisions: "column", "column_gathered", "row", "vocab".
    options: sections of a configuration, before those of `config`: optimizer,
        sharding, precision, loss_scale, memory, placement, offload, parallel,
        on_nonfinite, update_in_backward, save_in_background, log_memory. See
        configs/README.md. The optimizer may also be an AdamW, Adam or SGD of
        torch that has not stepped: Engine.optimizer then takes its place, and
        what schedules set in its groups, or in those of the one that was given,
        counts from the next step on. What else a configuration has is for
        init() or the loop, and an error here, but ignored in `config`.

        tessera.wrap(model, optimizer={"type": "adamw", "lr": 1e-4},
                     precision={"parameters": "bfloat16"},
                     memory={"device_bytes": "20GiB"})
    """
    values, source = merge_options("wrap", model, config, zero_stage, options)
    given = options.get("optimizer")
    init()
    engine = Engine(model, values, source, _plan_entries(tensor_plan))
    if isinstance(given, torch.optim.Optimizer):
        try:
            engine._take_over(given)
        except Exception:
            engine.unwrap()
            raise
    return engine


class Engine(FixedAttributes):
    """Trains one wrapped module; made by wrap().

    All ranks call its functions in the same order, except where they say
    otherwise.
    """

    _attributes = ("module", "optimizer", "is_unwrapped", "updates_in_backward")
    _other_names = {"lr": "learning_rate", "model": "module"}

    def __init__(self, model, options, source, plan):
        self.module = model
        self.optimizer = None  # an EngineOptimizer, in place of one of torch
        self.is_unwrapped = False
        self.updates_in_backward = bool(options.get("update_in_backward"))
        self._tree = Tree(model)
        self._engine = _C.Engine(
            self._tree.root, json.dumps(options), source, plan)
        self._guard = _Guard(self._tree)
        self._engine_step = functools.partial(_step, self._tree, self._engine)
        sampler.follow_steps()
        reads.guard()
        # Shards are freed while other ranks can still be reached.
        weakref.finalize(self, self._engine.close)

    def backward(self, loss):
        """Computes gradients of a scalar, averaged over the ranks.

        They accumulate until step() or zero_grad(). The loss is multiplied by
        loss_scale, and gradients are divided by it. One that gives no parameter
        of the module a gradient, as that of another module, is warned of once.
        """
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"engine.backward: the loss is of type {type(loss).__name__}; "
                "pass the tensor that the forward computed, without .item().")
        self._tree.refresh()
        if self.optimizer is not None:
            self.optimizer.apply()  # some updates begin in backward
        self._engine.backward(loss)

    def step(self):
        """One optimizer step; gradients are none afterwards.

        Returns False if it was skipped because gradients were not finite on
        some rank, with loss scaling or on_nonfinite="skip"; otherwise raises a
        NonfiniteGradientError for them, and the weights are as before.
        """
        if self.optimizer is None:
            return self._engine_step()
        self.optimizer.step()
        return not self.optimizer.step_was_skipped

    def _take_over(self, optimizer):
        names = {}
        for name, one in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(one), []).append(name)
        self.optimizer = EngineOptimizer(
            self._engine, self._engine_step, optimizer, names)

    def zero_grad(self):
        """Drops all gradients; not those that backward() has applied already
        (update_in_backward), which is an error.

        step() does so itself. A loop that goes on after an exception calls it,
        as what a backward() left that did not end would count in the next
        step.
        """
        self._engine.zero_grad()

    def clip_grad_norm(self, max_norm, norm_type=2.0):
        """Scales all gradients so that their norm is at most `max_norm`.

        norm_type: p of the p-norm, above 0; inf is the largest magnitude.

        Returns the norm before.
        """
        return self._engine.clip_grad_norm(max_norm, norm_type)

    def grad_norm(self, norm_type=2.0):
        """The norm of all gradients, as clip_grad_norm() returns it."""
        return self._engine.grad_norm(norm_type)

    def clip_grad_value(self, limit):
        """Clamps every element of every gradient to [-limit, limit]."""
        self._engine.clip_grad_value(limit)

    def multiply_gradients(self, factor):
        """Not collective, but all ranks must call it."""
        self._engine.multiply_gradients(factor)

    def grad(self, parameter):
        """The whole gradient, averaged over the ranks, or None."""
        return self._engine.grad(parameter)

    def reduce(self, parameter, gradient):
        """Adds a gradient that backward() did not compute."""
        self._engine.reduce(parameter, gradient)

    @contextlib.contextmanager
    def gather(self, *what, writable=False):
        """A context manager in which parameters can be read.

        what: parameters and modules; by default everything. With `writable`
            they can be written in place, the same values on every rank: where
            ranks have written others, the end of the scope is an error.

            with engine.gather(model.lm_head, writable=True):
                model.lm_head.weight.mul_(0.5)

        They have the dtype in which operators use them: with
        precision={"parameters": "bfloat16"}, what is written is rounded to it.
        for_each_parameter() has full precision.

        Of a parameter that tensor-parallel ranks divide (tensor_plan), modules
        compute with this rank's part, and so it is in the scope. The scope's
        full(parameter) is the whole; in a writable scope, what is written to it
        in place is the parameter's value at the end.

            with torch.no_grad(), engine.gather(writable=True) as scope:
                weight = scope.full(model.up.weight)
                weight.div_(weight.norm())
        """
        parameters = None
        if what:
            parameters = []
            for one in what:
                if isinstance(one, torch.nn.Module):
                    parameters.extend(one.parameters())
                else:
                    parameters.append(one)
        scope = self._engine.gather(parameters, writable)
        with self._guard.lifted(), scope:
            yield _GatherScope(scope)

    @contextlib.contextmanager
    def ema(self):
        """A context manager in which the module computes with the averages of
        its trained weights, which optimizer={"ema_decay": ...} keeps.

        gather(), state_dict() and save_weights() read them too. Meanwhile there
        is no backward(), step(), save() or load(); afterwards the weights are
        what they were, to the last bit. Collective.

            with engine.ema():
                evaluate(model)
                engine.save_weights("averaged")
        """
        self._tree.refresh()
        with self._engine.ema():
            yield

    def for_each_parameter(self, visit, writable=False):
        """Calls visit(name, value) with the whole value of every parameter.

        One group of them is whole at a time. The value is that of the master
        weight, if there is one; a tied parameter comes under each of its
        names. With `writable`, what is written to it in place, the same on
        every rank, takes its place without rounding to a lower precision; a
        tied parameter comes once, and gradients are dropped.

            engine.for_each_parameter(
                lambda name, value: average[name].lerp_(value.cpu(), 0.01))
            engine.for_each_parameter(
                lambda name, value: value.copy_(average[name]), writable=True)
        """
        self._tree.refresh()
        with torch.no_grad():
            self._engine.for_each_parameter(visit, writable)

    def stream_state_dict(self):
        """Yields name and value of every parameter and persistent buffer, and
        of the extra state of modules that have one (get_extra_state()).

        One tensor is whole at a time, on the CPU, on rank 0; other ranks get
        None and have to go through all of them too. A tied parameter comes
        once under each of its names.
        """
        self._tree.refresh_buffers()
        for index, names in enumerate(self._engine.tensor_names()):
            value = self._engine.read(index)
            for name in names:
                yield name, value
        is_first = init().rank == 0
        for name, module in self._tree.extra_states():
            yield name, module.get_extra_state() if is_first else None

    def state_dict(self):
        """The whole model on rank 0, on the CPU; empty on other ranks."""
        return {name: value for name, value in self.stream_state_dict()
                if value is not None}

    def load_state_dict(self, state, strict=True):
        """Loads whole values; every rank passes the same ones, or it is an
        error before anything has changed; also of layers that ranks divide.

        state_dict() has them on rank 0 only: load_weights() reads them from a
        file on every rank.

        Returns a pair of the names that are missing and those that are
        unexpected; with `strict` they are an error, before anything has
        changed.
        """
        self._check_same_names(state)
        extra = dict(self._tree.extra_states())
        own = dict(self.module.named_parameters(remove_duplicate=False))
        own.update({
            name: value for name, value in self.module.state_dict(
                keep_vars=True).items() if name not in own})
        others = [f"{name!r} of type {type(state[name]).__name__}"
                  for name in own if name in state and name not in extra
                  and not isinstance(state[name], torch.Tensor)]
        if others:
            raise TypeError(
                f"load_state_dict: {others[0]} is not a tensor; pass "
                "torch.as_tensor() of it.")
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        shapes = [
            f"{name} is {list(state[name].shape)}, here "
            f"{_C.full_sizes(own[name])}"
            for name in own if name in state and name not in extra
            and list(state[name].shape) != _C.full_sizes(own[name])]
        if shapes or (strict and (missing or unexpected)):
            raise _C.Error(
                "load_state_dict: " + "; ".join(
                    [f"missing: {', '.join(missing)}"] * bool(missing) +
                    [f"unexpected: {', '.join(unexpected)}"] *
                    bool(unexpected) + shapes) +
                ". Pass strict=False to leave missing and unexpected ones out.")
        self._engine.check_same_values("load_state_dict", [
            (name, state[name]) for name, one in own.items()
            if name in state and isinstance(one, torch.Tensor)])
        names = {}  # as they are now, and the engine has those of wrap()
        for name, one in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(one), []).append(name)

        def take(wrapped_name, value):
            for name in names[id(self._tree.parameter(wrapped_name))]:
                if own.pop(name, None) is not None and name in state:
                    value.copy_(state[name])

        self.for_each_parameter(take, writable=True)
        with torch.no_grad():
            for name, tensor in own.items():  # buffers, ignored parameters
                if name in state and name not in extra:
                    tensor.copy_(state[name])
        for name, module in extra.items():
            if name in state:
                module.set_extra_state(state[name])
        return missing, unexpected

    def _check_same_names(self, state):
        """All ranks get the error if some were given other names."""
        self._tree.refresh()
        world = init()
        if world.size == 1:
            return
        of_ranks = torch.zeros(world.size, 2, dtype=torch.int64)
        of_ranks[world.rank, 0] = len(state)
        of_ranks[world.rank, 1] = zlib.crc32("\n".join(
            f"{name} {isinstance(value, torch.Tensor)} "
            f"{tuple(getattr(value, 'shape', ()))}"
            for name, value in sorted(
                state.items(), key=lambda one: one[0])).encode())
        self._engine.sum_over_ranks(of_ranks)
        for rank in range(1, world.size):
            if not torch.equal(of_ranks[rank], of_ranks[0]):
                raise _C.Error(
                    f"load_state_dict: rank 0 passes {of_ranks[0, 0]} values, "
                    f"rank {rank} {of_ranks[rank, 0]}, with other names, shapes "
                    "or types. Pass the same ones on every rank; where only rank "
                    "0 has them, as from engine.state_dict(), save them to a "
                    "file and call engine.load_weights() on every rank.")

    def save(self, folder, states=(), keep_last=0):
        """Writes a checkpoint to a new folder step-N in `folder`.

        Gradients are not saved: call it after step().

        states: objects with state_dict() and load_state_dict(), or a dict of
            them by name: schedules, a BatchSampler. Rank 0's is saved, and all
            ranks get it: one that differs on another rank is an error. Of an
            object with an attribute is_per_rank that is true, every rank saves
            its own; what is rank 0's alone is passed on rank 0 only.
        keep_last: removes all but so many of the run's latest ones, if above
            0; never the one just written, nor those of another run.

        Returns the folder. Loads under any number and layout of ranks. Warns
        where it replaces a checkpoint of another run.
        """
        self._tree.refresh_buffers()
        with self._in_checkpoint():
            return self._engine.save(
                os.fspath(folder), self._states(states, saves=True),
                whole_number("save", "keep_last", keep_last))

    def save_in_background(self, folder, states=(), keep_last=0):
        """As save(), but returns a PendingSave once the state is copied.

        Needs wrap(..., save_in_background=True).
        """
        self._tree.refresh_buffers()
        with self._in_checkpoint():
            return self._engine.save_in_background(
                os.fspath(folder), self._states(states, saves=True),
                whole_number("save_in_background", "keep_last", keep_last))

    def load(self, path, states=()):
        """Loads a checkpoint, or the latest in a folder; returns its step.

        What a state refuses, such as the position in other data, is an error
        before weights and moments have changed. An optimizer of torch may have
        other groups than the one that was saved: parameters keep the values of
        their groups by name.
        """
        self._tree.refresh_buffers()
        with self._in_checkpoint():
            step = self._engine.load(os.fspath(path), self._states(states))
            if self.optimizer is not None:
                self.optimizer.take_rate()
        return step

    def _in_checkpoint(self):
        return contextlib.nullcontext() if self.optimizer is None \
            else self.optimizer.in_checkpoint()

    def _states(self, states, saves=False):
        own = {}
        if self.optimizer is not None:
            own["optimizer groups"] = self.optimizer
        # As with torch, what modules save themselves is rank 0's.
        if any(True for _ in self._tree.extra_states()) and not (
                saves and init().rank > 0):
            own["extra states of modules"] = ExtraStates(self._tree)
        # Loaded in reverse: those of the optimizer, which may refuse, first.
        return states_of(states) + states_of(own)[::-1]

    def load_weights(self, path, strict=True):
        """Loads safetensors, or files of torch.save, into the shards.

        Each rank reads its part only. Returns what is missing, parameters and
        persistent buffers, and unexpected; with `strict` they are an error,
        before anything has changed.
        """
        self._tree.refresh_buffers()
        return self._engine.load_weights(os.fspath(path), strict)

    def save_weights(self, path):
        """Writes the whole model as safetensors; rank 0 holds one tensor."""
        self._tree.refresh_buffers()
        self._engine.save_weights(os.fspath(path))

    def unwrap(self):
        """Gives the module its whole parameters back and ends the engine."""
        self._engine.unwrap()
        self._engine.close()
        self._guard.remove()
        self.is_unwrapped = True

    def sum_over_ranks(self, values):
        """Sums a small CPU tensor over all ranks, in place."""
        self._engine.sum_over_ranks(values)

    def broadcast_buffers(self):
        """Gives all ranks rank 0's values of persistent buffers, such as running
        statistics, as checkpoints have them: for an evaluation of what would be
        saved. Not where ranks divide layers. Collective."""
        world = init()
        if world.size == 1 or self.batches[1] != world.size:
            return
        with torch.no_grad():
            for module in self.module.modules():
                for _, buffer in persistent_buffers(module):
                    kind = torch.complex128 if buffer.is_complex() else \
                        torch.float64 if buffer.is_floating_point() else \
                        torch.int64
                    value = buffer.detach().to("cpu", kind, copy=True)
                    if kind == torch.complex128:
                        value = torch.view_as_real(value)
                    if world.rank > 0:
                        value.zero_()
                    self._engine.sum_over_ranks(value)
                    if world.rank > 0:
                        buffer.copy_(torch.view_as_complex(value)
                                     if buffer.is_complex() else value)

    @property
    def lineage(self):
        """Identifies the run that this engine's checkpoints belong to: its own,
        or that of the checkpoint that was loaded. Checkpoints have rank 0's."""
        return self._engine.lineage

    @property
    def learning_rate(self):
        """The highest of the next step."""
        if self.optimizer is not None:
            return self.optimizer.highest_rate
        return self._engine.learning_rate

    @learning_rate.setter
    def learning_rate(self, lr):
        if self.optimizer is not None:
            raise _C.Error(
                "learning_rate: with an optimizer of torch, rates are those of "
                "its groups; set engine.optimizer.param_groups[i]['lr'].")
        self._engine.learning_rate = lr

    @property
    def trained_parameters(self):
        return self._engine.trained_parameters()

    @property
    def loss_scale(self):
        return self._engine.loss_scale

    @property
    def device(self):
        return self._engine.device

    @property
    def batches(self):
        """(index, count): which of the batches at a time this rank trains on."""
        return self._engine.batches()

    @property
    def memory_plan(self):
        """Planned bytes on this rank, {"device": {"parameters": ...}, ...}."""
        return self._engine.memory_plan

    @property
    def memory(self):
        """Bytes as allocated now; likewise."""
        return self._engine.memory

    @property
    def statistics(self):
        """Counters of all-gathers and reductions."""
        return self._engine.statistics


def _step(tree, engine):
    tree.refresh()
    try:
        is_taken = engine.step()
    except _C.NonfiniteGradientError:
        sampler.count_step()  # as one that was skipped: training may go on
        raise
    sampler.count_step()
    return is_taken


class _GatherScope:
    """What Engine.gather() gives."""

    def __init__(self, scope):
        self._scope = scope

    def full(self, parameter):
        """The whole value of a parameter of the scope."""
        with torch.no_grad():
            return self._scope.full(parameter)


class _Guard:
    """Refuses copies of sharded parameters, and moves of their modules.

    copy.deepcopy() would gather one after the other on every rank, for a whole
    model on each of them that nothing keeps in step. Module.to() and its like
    would replace what the engine holds.
    """

    def __init__(self, tree):
        self._parameters = tree.parameters()
        self._modules = tree.modules()
        self._lifts = 0
        self._add()

    @property
    def is_lifted(self):
        """Whether a scope of gather() is open."""
        return self._lifts > 0

    def _add(self):
        for parameter in self._parameters:
            parameter.__deepcopy__ = _refuse_copy
        for module in self._modules:
            module._apply = functools.partial(
                _check_apply, module,
                [(parameter.dtype, parameter.device)
                 for parameter in module.parameters()][:1])

    def remove(self):
        for parameter in self._parameters:
            parameter.__dict__.pop("__deepcopy__", None)
        for module in self._modules:
            module.__dict__.pop("_apply", None)

    @contextlib.contextmanager
    def lifted(self):
        """While it is open, they are copied."""
        self.remove()
        self._lifts += 1
        try:
            yield
        finally:
            self._lifts -= 1
            if not self._lifts:
                self._add()


def _refuse_copy(_memo):
    raise _C.Error(
        "copy.deepcopy: the module is sharded. Copy it before wrap(), or as a "
        "whole model inside `with engine.gather():`, on every rank.")


def _check_apply(module, kinds, function, recurse=True):
    """In place of Module._apply(), behind to(), cuda(), half() and so on."""
    for dtype, device in kinds:
        moved = function(torch.empty(0, dtype=dtype, device=device))
        if (moved.dtype, moved.device) != (dtype, device):
            raise _C.Error(
                f"the module is sharded, and cannot go from {dtype} on {device} "
                f"to {moved.dtype} on {moved.device}. Move and cast it before "
                "tessera.wrap(), or call unwrap() first; for lower precision, "
                "pass precision={'parameters': ...}.")
    return module


def _refuse_compiled(model):
    # Not imported for this: without it nothing has been compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or (
                dynamo and isinstance(module, dynamo.OptimizedModule)):
            raise _C.Error(
                f"wrap: {name or 'the model'} is compiled by torch.compile, "
                "whose code reads the memory of parameters without asking the "
                "engine for it. Wrap the module that is not compiled.")


def _refuse_other_wrappers(caller, model):
    # Not imported for this: without them nothing has been wrapped.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    fully_sharded = tuple(
        getattr(fsdp, name) for name in ("FullyShardedDataParallel",
                                         "FSDPModule") if hasattr(fsdp, name))
    for name, module in model.named_modules():
        kind = type(module).__name__
        found = f"{name!r} is" if name else "the model is"
        if isinstance(module, (torch.nn.DataParallel,
                               torch.nn.parallel.DistributedDataParallel)):
            raise _C.Error(
                f"{caller}: {found} of type {kind}, which reduces gradients itself; "
                "pass the module inside it, its attribute `module`.")
        if isinstance(module, fully_sharded):
            raise _C.Error(
                f"{caller}: {found} sharded by FSDP ({kind}); pass the module "
                "as it was before.")
        lazy = [own for own, one in module.named_parameters(recurse=False)
                if torch.nn.parameter.is_lazy(one)]
        if lazy:
            raise _C.Error(
                f"{caller}: '{'.'.join(filter(None, (name, lazy[0])))}' gets its "
                f"shape in the first forward of {kind}; run a forward first, "
                "or give the layer its input features.")
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and (
                module.max_norm is not None):
            raise _C.Error(
                f"{caller}: {found} of type {kind} with max_norm, whose forward "
                "writes to its weight, which is sharded. Create it without "
                "max_norm; to limit the norms, write the weight in `with "
                "engine.gather(module, writable=True):` after a step.")


# Keys of `tessera train` and init() that wrap() leaves to them, and what a
# caller of wrap() does instead.
_OF_INIT = dict.fromkeys(
    ("device", "cpu_matmul", "cuda_matmul", "fused", "timeout_s",
     "keep_freed_memory", "reuse_gradients"),
    "pass it to tessera.init() before")
_OF_TRAINER = {
    "training":
        "the loop is yours: clip with engine.clip_grad_norm(), accumulate by "
        "several engine.backward() before a step, save with engine.save()",
    "schedule":
        "give wrap() an optimizer of torch and engine.optimizer a schedule of "
        "torch, or set engine.learning_rate before each step",
    **dict.fromkeys(("task", "model", "data", "output"),
                    "it is for `tessera train`")}


def refuse_twice(caller, options, section, key, value):
    """A keyword for a key of a section, if `options` have the key too."""
    given = options.get(section)
    if value is not None and isinstance(given, dict) and key in given:
        raise _C.Error(
            f"{caller}: {key}={value!r} and {section}={{{key!r}: "
            f"{given[key]!r}}} are the same option; leave one of them out.")


def merge_options(caller, model, config, zero_stage, options):
    """The options that wrap() and plan() are given, as those of the engine.

    Returns the values and their name in errors.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{caller}: {type(model).__name__} is not a torch.nn.Module.")
    _refuse_compiled(model)
    _refuse_other_wrappers(caller, model)
    values, source = _read_config(caller, config)
    for key, value in options.items():
        # Those that no configuration has; the engine knows the others' names.
        meant = difflib.get_close_matches(
            key, ("config", "tensor_plan", "zero_stage"), n=1, cutoff=0.8)
        if meant:
            raise _C.Error(
                f"{caller}: {key!r} is not an option; did you mean "
                f"{meant[0]!r}?")
        remedy = {**_OF_INIT, **_OF_TRAINER}.get(key)
        if remedy:
            raise _C.Error(
                f"{caller}: {key!r} has no effect on an engine; {remedy}. (In "
                "a configuration it may stay.)")
        if key == "optimizer":
            value = _optimizer_section(caller, value, model)
        _merge(values, key, plain(value, key, f"tessera.{caller}()"))
    refuse_twice(caller, options, "sharding", "zero_stage", zero_stage)
    if zero_stage is not None:
        _merge(values, "sharding", {"zero_stage": zero_stage})
    return values, source


def _optimizer_section(caller, value, model):
    if isinstance(value, torch.optim.Optimizer):
        return options_of(value, model)
    if value is None or isinstance(value, (dict, str, type)):
        return value
    raise _C.Error(
        f"{caller}: optimizer is of type {type(value).__name__}; it must be one "
        "torch.optim.AdamW, Adam or SGD, or a dict of options, e.g. "
        "{'type': 'adamw', 'lr': 1e-4}.")


def _read_config(caller, config):
    """Returns the values and their name in errors."""
    if config is None:
        return {}, f"tessera.{caller}()"
    if isinstance(config, dict):
        source = f"tessera.{caller}(config)"
        return plain(config, "", source), source
    path = os.fspath(config)
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file), path
        except json.JSONDecodeError as error:
            raise _C.Error(f"{path}: {error}") from error


def _merge(values, key, value):
    """Objects are merged key by key; other values replace what is there."""
    if isinstance(value, dict) and isinstance(values.get(key), dict):
        for inner, item in value.items():
            _merge(values[key], inner, item)
    else:
        values[key] = value


def _plan_entries(plan):
    entries = []
    for pattern, division in (plan or {}).items():
        unit = 1
        if not isinstance(division, str):
            division, unit = division
        entries.append((pattern, division, unit))
    return entries

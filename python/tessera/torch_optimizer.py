# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch, as options of the engine and in front of it."""
import contextlib
import json
import re
import warnings

import torch

from tessera import _C


def _adam_options(group):
    if group.get("amsgrad"):
        raise _C.Error(
            "optimizer: amsgrad is not one of the engine's optimizers; create "
            "the optimizer without it.")
    return {"type": "adamw" if group["decoupled_weight_decay"] else "adam",
            "betas": [float(beta) for beta in group["betas"]],
            "eps": float(group["eps"])}


def _sgd_options(group):
    return {"type": "sgd", "momentum": float(group["momentum"]),
            "dampening": float(group["dampening"]),
            "nesterov": bool(group["nesterov"])}


_KINDS = {torch.optim.AdamW: _adam_options, torch.optim.Adam: _adam_options,
          torch.optim.SGD: _sgd_options}


def _options_of_group(kind, group):
    """A section `optimizer` for one group, without its learning rate."""
    if group.get("maximize"):
        raise _C.Error(
            "optimizer: a group maximizes; negate the loss instead.")
    if group.get("differentiable"):
        raise _C.Error(
            "optimizer: a group is differentiable; the engine's steps are not. "
            "Create the optimizer without it.")
    return {**_KINDS[kind](group), "weight_decay": float(group["weight_decay"])}


def _state_of(options):
    """What memory is planned for: equal where options can be exchanged later."""
    return options["type"], options.get("momentum", 0) > 0


def _patterns_of(names):
    """Regular expressions that together match these names and no others."""
    # The engine's library limits the length of one.
    limit = 20000
    begin, length = 0, 0
    escaped = [re.escape(name) for name in names]
    for i, name in enumerate(escaped):
        if length + len(name) > limit and i > begin:
            yield "|".join(escaped[begin:i])
            begin, length = i, 0
        length += len(name) + 1
    if begin < len(escaped):
        yield "|".join(escaped[begin:])


def options_of(optimizer, model):
    """The engine's section `optimizer` that has the state of `optimizer`.

    It has to be an AdamW, Adam or SGD of torch that has not stepped; its groups
    are those of parameters of `model`. EngineOptimizer then gives each group
    its hyperparameters: here are those of most parameters, and of groups whose
    state is another.
    """
    kind = type(optimizer)
    if kind not in _KINDS:
        raise _C.Error(
            f"wrap: an optimizer of type {kind.__name__} cannot be taken over; "
            "pass a torch.optim.AdamW, Adam or SGD, or to wrap() itself the "
            "options of one of the engine's, e.g. optimizer={'type': 'lion', "
            "'lr': 1e-4}. A Trainer has its TrainingArguments' optim: adamw_torch "
            "or sgd.")
    if optimizer.state:
        raise _C.Error(
            "wrap: the optimizer has stepped already, and its state cannot be "
            "taken over; wrap the model before the first step.")
    names = {id(parameter): name
             for name, parameter in model.named_parameters()}
    held = set()
    by_options = {}  # names
    for group in optimizer.param_groups:
        own = []
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise _C.Error(
                    "wrap: the optimizer has a parameter of shape "
                    f"{list(parameter.shape)} that the model has not; create "
                    "it with model.parameters().")
            own.append(names[id(parameter)])
            held.add(id(parameter))
        by_options.setdefault(
            json.dumps(_options_of_group(kind, group)), []).extend(own)
    left_out = [name for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in held]
    if left_out:
        raise _C.Error(
            f"wrap: {', '.join(left_out[:5])}{' ...' * (len(left_out) > 5)} "
            "require gradients, but the optimizer has not got them; call "
            "requires_grad_(False) on them, or add them to it.")
    most = json.loads(
        max(by_options, key=lambda options: len(by_options[options])))
    return {
        **most, "lr": max(_rates(optimizer)),
        "parameters": [
            {"pattern": pattern, **json.loads(options)}
            for options, own in by_options.items()
            if _state_of(json.loads(options)) != _state_of(most)
            for pattern in _patterns_of(own)]}


def _rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


class EngineOptimizer(torch.optim.Optimizer):
    """What schedules and loops see of the optimizer that wrap() was given.

    Its groups are those of the given one, so that schedules made before wrap()
    count too: rate, weight decay, betas, eps, momentum and the like of a group
    are those of its parameters in the next backward and step. Its state is the
    engine's, in whose checkpoints the groups' values are as well.
    """

    is_optional = True

    def __init__(self, engine, step, optimizer, names):
        """
        engine: a _C.Engine. The Engine, which has this object, would be kept.
        step: makes a step of it; returns whether it was not skipped.
        names: of the model's parameters, all of each one's, by id().
        """
        self._engine = None  # add_param_group() is the base class's until then
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._given = optimizer
        # The same lists: what is registered or changed at either one counts.
        self.param_groups = optimizer.param_groups
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(self, hooks, getattr(optimizer, hooks))
        self.step_was_skipped = False
        self._is_in_checkpoint = False
        self._has_loaded = False
        self._engine = engine
        self._engine_step = step
        trained = {id(one) for one in engine.trained_parameters()}
        self._wrapped = [list(group["params"]) for group in self.param_groups]
        self._names = [[names[id(one)] for one in group]
                       for group in self._wrapped]
        self._trained = [[one for one in group if id(one) in trained]
                         for group in self._wrapped]
        others = [one for group in self._wrapped for one in group
                  if one.requires_grad and id(one) not in trained]
        if others:
            raise _C.Error(
                f"wrap: the engine does not train {len(others)} parameters of "
                f"the optimizer, the first of shape {list(others[0].shape)}, "
                "which the options ignore; give them an optimizer of their own.")
        self._applied = [(None, 1.0)] * len(self.param_groups)
        self.apply()

    def apply(self):
        """Gives the engine the groups' hyperparameters, where they changed."""
        self._check_groups()
        rates = _rates(self)
        peak = self.highest_rate
        if peak != self._engine.learning_rate:
            self._engine.learning_rate = peak
        for i, (group, rate) in enumerate(zip(self.param_groups, rates)):
            options = _options_of_group(type(self._given), group)
            # Without a rate all factors do the same.
            scale = rate / peak if peak else self._applied[i][1]
            if self._trained[i] and self._applied[i] != (options, scale):
                self._engine.set_parameter_options(
                    self._trained[i], json.dumps(options),
                    f"optimizer.param_groups[{i}]", scale, i + 1)
                self._applied[i] = (options, scale)

    @property
    def highest_rate(self):
        return max(_rates(self))

    def _check_groups(self):
        given = self._given
        if given.param_groups is not self.param_groups or given.state:
            raise _C.Error(
                "the torch optimizer that wrap() was given has stepped or has "
                "loaded a state, which the engine does not use; step with "
                "engine.step() or engine.optimizer, and load the engine's "
                "checkpoint.")
        if len(self.param_groups) != len(self._wrapped) or any(
                len(group["params"]) != len(own) or
                any(a is not b for a, b in zip(group["params"], own))
                for group, own in zip(self.param_groups, self._wrapped)):
            raise _C.Error(
                "the parameters in the optimizer's groups are not those that "
                "wrap() was given, and would not be trained. " + _ADD_BEFORE)

    def step(self, closure=None):
        if closure is not None:
            raise _C.Error(
                "step: the engine's optimizers take no closure; call "
                "engine.backward(loss) before it.")
        self.apply()
        # As schedules that were made with the given optimizer look at it.
        self._given._opt_called = True
        self.step_was_skipped = not self._engine_step()

    def zero_grad(self, set_to_none=True):
        self._engine.zero_grad()

    def add_param_group(self, param_group):
        if self._engine is not None:
            raise _C.Error("add_param_group: " + _ADD_BEFORE)
        super().add_param_group(param_group)

    @contextlib.contextmanager
    def in_checkpoint(self):
        """While it is open, the engine saves or loads moments beside the
        groups. After an error they have the values that they had."""
        self._is_in_checkpoint = True
        self._has_loaded = False
        before = [dict(group) for group in self.param_groups]
        try:
            yield
        except BaseException:
            for group, values in zip(self.param_groups, before):
                group.clear()
                group.update(values)
            raise
        finally:
            self._is_in_checkpoint = False

    def take_rate(self):
        """After the engine has loaded a checkpoint: if it was of an optimizer
        without groups, its rate becomes the highest of them, to which the
        others keep their ratios."""
        if self._has_loaded:
            return
        highest, peak = self.highest_rate, self._engine.learning_rate
        for group in self.param_groups:
            rate = peak * group["lr"] / highest if highest else peak
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _has_moments(self):
        return any(_options_of_group(type(self._given), group).get(
            "momentum", 1) > 0 for group in self.param_groups)

    def state_dict(self):
        """The groups' values only, as torch has them. Engine.save() has moments
        too: load_state_dict() refuses this where it would begin with new ones.
        """
        state = super().state_dict()
        if self._is_in_checkpoint:
            state[_NAMES] = self._names
        elif self._has_moments():
            state[_MOMENTS] = "in checkpoints of Engine.save()"
            warnings.warn(
                "engine.optimizer.state_dict() has the groups' values, but no "
                "moments: save the state of training with engine.save(), and "
                "continue from it with engine.load().", stacklevel=2)
        return state

    def load_state_dict(self, state):
        """Takes over the groups' values, as a schedule has left them: of a
        checkpoint by the names of parameters, of others by position."""
        if state.get("state") or _MOMENTS in state:
            what = ("the state of an optimizer of torch, with moments, which "
                    "the engine cannot take over" if state.get("state") else
                    "what engine.optimizer.state_dict() returned, which has no "
                    "moments")
            raise _C.Error(
                f"load_state_dict: this is {what}; continue from a checkpoint "
                "of Engine.save(), or pass only its 'param_groups' to begin "
                "with new moments.")
        # The base class would put other groups in the place of the shared ones.
        shared = self.param_groups
        super().load_state_dict(
            {"state": {}, "param_groups": self._groups_of(state)})
        for group, loaded in zip(shared, self.param_groups):
            group.update(loaded)
        self.param_groups = shared
        self._has_loaded = True

    def _groups_of(self, state):
        """The saved groups' values in this optimizer's groups."""
        saved = state["param_groups"]
        if _NAMES not in state:  # from elsewhere
            for i, own in enumerate(self._wrapped):
                if i >= len(saved) or len(saved[i]["params"]) != len(own):
                    found = f"has {len(saved[i]['params'])}" \
                        if i < len(saved) else "is missing"
                    raise _C.Error(
                        f"load: group {i} of the optimizer has {len(own)} "
                        f"parameters; that of the saved one {found}. "
                        f"{_SAME_GROUPS}")
            if len(saved) > len(self._wrapped):
                raise _C.Error(
                    f"load: the optimizer has {len(self._wrapped)} groups, the "
                    f"saved one {len(saved)}. {_SAME_GROUPS}")
            return saved
        group_of = {name: i for i, group in enumerate(state[_NAMES])
                    for names in group for name in names}
        merged = []
        for i, (own, mine) in enumerate(
                zip(super().state_dict()["param_groups"], self._names)):
            known = {}  # the saved groups that its parameters were in
            for names in mine:
                for name in names:
                    if name in group_of:
                        known.setdefault(group_of[name], name)
            values = [{key: value for key, value in saved[g].items()
                       if key not in ("params", "param_names")} for g in known]
            for (g, name), one in zip(known.items(), values):
                if one != values[0]:
                    first, first_name = next(iter(known.items()))
                    key = next(key for key in sorted({*one, *values[0]})
                               if one.get(key) != values[0].get(key))
                    raise _C.Error(
                        f"load: group {i} of the optimizer has {first_name!r}, "
                        f"which was saved in group {first} with {key}="
                        f"{values[0].get(key)}, and {name!r}, of group {g} with "
                        f"{key}={one.get(key)}. {_SAME_GROUPS}")
            # A group of new parameters only keeps what it was given.
            merged.append({**own, **(values[0] if values else {})})
        return merged


def has_moments(state):
    """Whether a state_dict() of an optimizer of torch has some."""
    return any(isinstance(value, torch.Tensor) and name != "step"
               for one in state["state"].values() for name, value in one.items())


# A key in states that have none.
_MOMENTS = "moments"

# A key in states of checkpoints: all names of each group's parameters.
_NAMES = "names_of_groups"

_SAME_GROUPS = (
    "Nothing has changed. Give wrap() an optimizer whose groups keep apart what "
    "the saved ones do, or options in place of an optimizer, with which a "
    "checkpoint of any groups loads.")

_ADD_BEFORE = (
    "The engine has planned the state of each parameter in wrap(): give a "
    "parameter to the module and to the optimizer before it.")

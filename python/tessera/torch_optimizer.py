# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch, as options of the engine and in front of it."""
import json
import re

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
    are those of parameters of `model`.
    """
    kind = type(optimizer)
    if kind not in _KINDS:
        raise _C.Error(
            f"wrap: a {kind.__name__} cannot be taken over; pass a "
            "torch.optim.AdamW, Adam or SGD, or the options of one of the "
            "engine's, e.g. optimizer={'type': 'lion', 'lr': 1e-4}.")
    if optimizer.state:
        raise _C.Error(
            "wrap: the optimizer has stepped already, and its state cannot be "
            "taken over; wrap the model before the first step.")
    names = {id(parameter): name
             for name, parameter in model.named_parameters()}
    held = set()
    peak = max(_initial_rates(optimizer)) or 1.0
    by_options = {}  # names
    for group, rate in zip(
            optimizer.param_groups, _initial_rates(optimizer)):
        own = []
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise _C.Error(
                    "wrap: the optimizer has a parameter of shape "
                    f"{list(parameter.shape)} that the model has not; create "
                    "it with model.parameters().")
            own.append(names[id(parameter)])
            held.add(id(parameter))
        by_options.setdefault(json.dumps(
            {**_options_of_group(kind, group), "lr_scale": rate / peak}),
            []).extend(own)
    left_out = [name for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in held]
    if left_out:
        raise _C.Error(
            f"wrap: {', '.join(left_out[:5])}{' ...' * (len(left_out) > 5)} "
            "require gradients, but the optimizer has not got them; call "
            "requires_grad_(False) on them, or add them to it.")
    # Most parameters need no pattern.
    most = max(by_options, key=lambda options: len(by_options[options]))
    first = json.loads(most)
    scale = first.pop("lr_scale")
    if scale == 1:
        del by_options[most]
    return {
        **first, "lr": peak,
        "parameters": [
            {"pattern": pattern, **json.loads(options)}
            for options, own in by_options.items()
            for pattern in _patterns_of(own)]}


def _rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def _initial_rates(optimizer):
    """Those before the schedules that were made already."""
    return [float(group.get("initial_lr", group["lr"]))
            for group in optimizer.param_groups]


class EngineOptimizer(torch.optim.Optimizer):
    """What schedules and loops see of the optimizer that wrap() was given.

    Its groups are those of the given one, so that the rates of schedules made
    before wrap() count too. The rates of all groups have to keep their ratios,
    as they do under every schedule that multiplies them; other values stay.
    Its state is the engine's, in whose checkpoints the groups' values are.
    """

    is_optional = True

    def __init__(self, engine, step, optimizer):
        """
        engine: a _C.Engine. The Engine, which has this object, would be kept.
        step: makes a step of it; returns whether it was not skipped.
        """
        self._engine = None  # add_param_group() is the base class's until then
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._given = optimizer
        # The same lists: what is registered or changed at either one counts.
        self.param_groups = optimizer.param_groups
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(self, hooks, getattr(optimizer, hooks))
        self.step_was_skipped = False
        self._engine = engine
        self._engine_step = step
        self._wrapped = [list(group["params"]) for group in self.param_groups]
        self._options = self._options_now()
        rates = _initial_rates(self)
        self._scales = [rate / (max(rates) or 1.0) for rate in rates]
        self.apply()

    def _options_now(self):
        return [_options_of_group(type(self._given), group)
                for group in self.param_groups]

    def apply(self):
        """Gives the engine the groups' rates, if nothing else has changed."""
        self._check_groups()
        rates = _rates(self)
        peak = max(rates)
        for rate, scale in zip(rates, self._scales):
            if abs(rate - scale * peak) > 1e-6 * peak:
                raise _C.Error(
                    f"optimizer: the learning rates of the groups are {rates}, "
                    f"in another ratio than {self._scales} at wrap(); change "
                    "them by one factor.")
        if peak != self._engine.learning_rate:
            self._engine.learning_rate = peak

    def _check_groups(self):
        given = self._given
        if given.param_groups is not self.param_groups or given.state:
            raise _C.Error(
                "the torch optimizer that wrap() was given has loaded a state, "
                "which the engine does not use; load Engine.optimizer, or the "
                "engine's checkpoint.")
        if len(self.param_groups) != len(self._wrapped) or any(
                len(group["params"]) != len(own) or
                any(a is not b for a, b in zip(group["params"], own))
                for group, own in zip(self.param_groups, self._wrapped)):
            raise _C.Error(
                "the parameters in the optimizer's groups are not those that "
                "wrap() was given, and would not be trained. " + _ADD_BEFORE)
        for i, (now, then) in enumerate(
                zip(self._options_now(), self._options)):
            if now != then:
                raise _C.Error(
                    f"optimizer: group {i} has {now} now, and had {then} in "
                    "wrap(); of what schedules set, only learning rates are "
                    "followed. Pass cycle_momentum=False to OneCycleLR and "
                    "CyclicLR.")

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

    def load_state_dict(self, state):
        """Takes over the groups' values, as a schedule has left them."""
        if state.get("state"):
            raise _C.Error(
                "load_state_dict: this is the state of an optimizer of torch, "
                "with moments, which the engine cannot take over; continue from "
                "a checkpoint of Engine.save(), or pass only its "
                "'param_groups' to begin with new moments.")
        # The base class would put other groups in the place of the shared ones.
        shared = self.param_groups
        super().load_state_dict(
            {"state": {}, "param_groups": state["param_groups"]})
        for group, loaded in zip(shared, self.param_groups):
            group.update(loaded)
        self.param_groups = shared


_ADD_BEFORE = (
    "The engine has planned the state of each parameter in wrap(): give a "
    "parameter to the module and to the optimizer before it.")

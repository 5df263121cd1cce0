# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch, as options of the engine and in front of it."""
import re

import torch

from tessera import _C


def _adam(kind):
    def options(group):
        if group.get("amsgrad"):
            raise _C.Error(
                "wrap: amsgrad is not one of the engine's optimizers; create "
                "the optimizer without it.")
        return {"type": kind, "betas": list(group["betas"]),
                "eps": group["eps"]}
    return options


def _sgd(group):
    return {"type": "sgd", "momentum": group["momentum"],
            "dampening": group["dampening"], "nesterov": group["nesterov"]}


_KINDS = {torch.optim.AdamW: _adam("adamw"), torch.optim.Adam: _adam("adam"),
          torch.optim.SGD: _sgd}


def options_of(optimizer, model):
    """The engine's section `optimizer` that does the same as `optimizer`.

    It has to be an AdamW, Adam or SGD of torch that has not stepped; its groups
    are those of parameters of `model`.
    """
    convert = _KINDS.get(type(optimizer))
    if convert is None:
        raise _C.Error(
            f"wrap: a {type(optimizer).__name__} cannot be taken over; pass a "
            "torch.optim.AdamW, Adam or SGD, or the options of one of the "
            "engine's, e.g. optimizer={'type': 'lion', 'lr': 1e-4}.")
    if optimizer.state:
        raise _C.Error(
            "wrap: the optimizer has stepped already, and its state cannot be "
            "taken over; wrap the model before the first step.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise _C.Error("wrap: the optimizer maximizes; negate the loss instead.")
    names = {id(parameter): name
             for name, parameter in model.named_parameters()}
    first = optimizer.param_groups[0]
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    peak = max(rates) or 1.0
    options = {"lr": peak, "weight_decay": first["weight_decay"],
               **convert(first)}
    options["parameters"] = []
    held = set()
    for group, rate in zip(optimizer.param_groups, rates):
        own = []
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise _C.Error(
                    "wrap: the optimizer has a parameter of shape "
                    f"{list(parameter.shape)} that the model has not; create "
                    "it with model.parameters().")
            own.append(names[id(parameter)])
            held.add(id(parameter))
        if own:
            options["parameters"].append(
                {"pattern": "|".join(map(re.escape, own)),
                 "lr_scale": rate / peak, **convert(group),
                 "weight_decay": group["weight_decay"]})
    left_out = [name for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in held]
    if left_out:
        raise _C.Error(
            f"wrap: {', '.join(left_out[:5])}{' ...' * (len(left_out) > 5)} "
            "require gradients, but the optimizer has not got them; call "
            "requires_grad_(False) on them, or add them to it.")
    return options


class EngineOptimizer(torch.optim.Optimizer):
    """What schedules of torch see: groups with learning rates, and step().

    The rates of all groups have to keep their ratios, as they do under every
    schedule that multiplies them. Checkpoints of the engine have the groups'
    values.
    """

    is_optional = True

    def __init__(self, engine, optimizer):
        # No state and hooks of its own: the engine has the state.
        self.defaults = optimizer.defaults
        self.param_groups = optimizer.param_groups
        self.state = {}
        self._engine = engine
        self._ratios = self._ratios_now()
        self.step_was_skipped = False

    def _rates(self):
        return [float(group["lr"]) for group in self.param_groups]

    def _ratios_now(self):
        peak = max(self._rates())
        return [rate / peak for rate in self._rates()] if peak else None

    def step(self, closure=None):
        if closure is not None:
            raise _C.Error(
                "step: the engine's optimizers take no closure; call "
                "engine.backward(loss) before it.")
        ratios = self._ratios_now()
        self._ratios = self._ratios or ratios
        if ratios and any(abs(now - then) > 1e-6
                          for now, then in zip(ratios, self._ratios)):
            raise _C.Error(
                f"step: the learning rates of the groups are {self._rates()}, "
                "in another ratio than at wrap(); change them by one factor.")
        self._engine.learning_rate = max(self._rates())
        self.step_was_skipped = not self._engine.step()

    def zero_grad(self, set_to_none=True):
        self._engine.zero_grad()

    def state_dict(self):
        return {"param_groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups]}

    def load_state_dict(self, state):
        for group, saved in zip(self.param_groups, state["param_groups"]):
            group.update(saved)

    def __repr__(self):
        return f"EngineOptimizer({self.param_groups})"

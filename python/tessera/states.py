# SPDX-License-Identifier: Apache-2.0
"""States of Python objects in checkpoints."""
import json

import torch

from tessera import _C


def _split(value, path, tensors):
    """Replaces tensors by their names in `tensors`."""
    if isinstance(value, torch.Tensor):
        name = "/".join(path)
        tensors[name] = value.detach()
        return {"__tensor__": name}
    if isinstance(value, dict):
        keys = [key for key in value if not isinstance(key, str)]
        if keys:
            # JSON has no other keys: pairs.
            return {"__pairs__": [
                [key, _split(item, [*path, str(key)], tensors)]
                for key, item in value.items()]}
        return {key: _split(item, [*path, key], tensors)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_split(item, [*path, str(i)], tensors)
                 for i, item in enumerate(value)]
        return {"__tuple__": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{'.'.join(path) or 'the state'} is of type {type(value).__name__}; a "
        "checkpoint takes None, numbers, strings, tensors, and lists, tuples "
        "and dicts of them. Leave it out of state_dict().")


def _join(value, tensors):
    if isinstance(value, dict):
        if "__tensor__" in value:
            return tensors[value["__tensor__"]]
        if "__pairs__" in value:
            return {key: _join(item, tensors)
                    for key, item in value["__pairs__"]}
        if "__tuple__" in value:
            return tuple(_join(item, tensors) for item in value["__tuple__"])
        return {key: _join(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    return value


class ExtraStates:
    """What modules add to their state_dict() by get_extra_state()."""

    is_optional = True  # checkpoints without it are older

    def __init__(self, tree):
        self._tree = tree

    def state_dict(self):
        return {name: module.get_extra_state()
                for name, module in self._tree.extra_states()}

    def load_state_dict(self, state):
        for name, module in self._tree.extra_states():
            if name in state:
                module.set_extra_state(state[name])


def _state(name, given):
    def save():
        tensors = {}
        return json.dumps(_split(given.state_dict(), [], tensors)), tensors

    def load(values, tensors):
        given.load_state_dict(_join(json.loads(values), tensors))

    return _C.State(name, bool(getattr(given, "is_per_rank", False)),
                    bool(getattr(given, "is_optional", False)), save, load)


def states_of(given):
    """Of objects with state_dict() and load_state_dict().

    given: a dict by name in the checkpoint, or a sequence of objects, whose
    names are their attribute `name` or else their types.
    """
    if not isinstance(given, dict):
        named = {}
        for one in given:
            name = getattr(one, "name", None) or type(one).__name__
            if name in named:
                raise ValueError(
                    f"two states are called {name!r}; pass a dict with a name "
                    "for each.")
            named[name] = one
        given = named
    for name, one in given.items():
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(one, method, None)):
                raise TypeError(
                    f"state {name!r} is of type {type(one).__name__}, without "
                    f"{method}().")
    return [_state(name, one) for name, one in given.items()]

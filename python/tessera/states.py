# SPDX-License-Identifier: Apache-2.0
"""States of Python objects in checkpoints."""
import collections
import json
import math
import numbers

import torch

from tessera import _C


# Integers that the engine's JSON has.
_INTEGERS = range(-2**63, 2**64)


def _split(value, path, tensors):
    """Replaces tensors by their names in `tensors`, and what JSON has not."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor):
        name = "/".join(path)
        tensors[name] = value.detach()
        return {"__tensor__": name}
    if isinstance(value, numbers.Integral):
        value = int(value)  # of NumPy, or an enumeration
        return value if value in _INTEGERS else {"__int__": str(value)}
    if isinstance(value, numbers.Real) and not isinstance(
            value, numbers.Rational):  # a Fraction would be rounded
        value = float(value)
        return value if math.isfinite(value) else {"__float__": str(value)}
    if isinstance(value, dict):
        if isinstance(value, collections.Counter):
            return {"__counter__": _split(dict(value), path, tensors)}
        if not all(isinstance(key, str) for key in value) or (
                _MARKS & value.keys()):
            # JSON has no other keys: pairs.
            return {"__pairs__": [
                [_split(key, [*path, "key"], tensors),
                 _split(item, [*path, str(key)], tensors)]
                for key, item in value.items()]}
        return {key: _split(item, [*path, key], tensors)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_split(item, [*path, str(i)], tensors)
                 for i, item in enumerate(value)]
        return {"__tuple__": items} if isinstance(value, tuple) else items
    raise TypeError(
        f"{'.'.join(path) or 'the state'} is of type {type(value).__name__}; a "
        "checkpoint takes None, integers, floats, strings, tensors, and lists, "
        "tuples and dicts of them. Leave it out of state_dict().")


_JOINED = {
    "__tensor__": lambda name, tensors: tensors[name],
    "__int__": lambda text, _: int(text),
    "__float__": lambda text, _: float(text),
    "__counter__": lambda value, tensors:
        collections.Counter(_join(value, tensors)),
    "__pairs__": lambda pairs, tensors: {
        _join(key, tensors): _join(item, tensors) for key, item in pairs},
    "__tuple__": lambda items, tensors:
        tuple(_join(item, tensors) for item in items),
}
_MARKS = _JOINED.keys()


def _join(value, tensors):
    if isinstance(value, dict):
        if len(value) == 1:
            (mark, inner), = value.items()
            if mark in _JOINED:
                return _JOINED[mark](inner, tensors)
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
        try:
            values = _split(given.state_dict(), [], tensors)
        except TypeError as error:
            raise TypeError(f"state {name!r}: {error}") from error
        return json.dumps(values), tensors

    def load(values, tensors):
        given.load_state_dict(_join(json.loads(values), tensors))

    return _C.State(name, bool(getattr(given, "is_per_rank", False)),
                    bool(getattr(given, "is_optional", False)), save, load)


def states_of(given):
    """Of objects with state_dict() and load_state_dict().

    given: a dict by name in the checkpoint, or a sequence of objects, whose
    names are their attribute `name` or else their types.
    """
    if given is None or callable(getattr(given, "state_dict", None)):
        raise TypeError(
            f"states are {given!r}, of type {type(given).__name__}; pass a list "
            "of states, or a dict of them by name.")
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

# SPDX-License-Identifier: Apache-2.0
"""Options of Python's types, as a configuration has them."""
import math
import numbers
import os

import torch

from tessera import _C

# What an option of such a type may be instead.
_INSTEAD = (
    (torch.Tensor, "pass a number, as by .item()"),
    (type, "pass an instance of it, or options such as {'type': 'adamw'}"),
    (torch.optim.Optimizer, "pass it as wrap(model, optimizer=...)"),
)


def plain(value, key, source):
    """A copy of `value` of the types that JSON has.

    dtypes, devices and paths become their names.

    key: that of the option, for errors; "" for all options together.
    source: where options are given, likewise.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, numbers.Integral):  # of NumPy
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise _C.Error(f"{source}: {key} is {value}; it must be finite.")
        return float(value)
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return {str(inner): plain(
                    item, f"{key}.{inner}" if key else str(inner), source)
                for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{key}[{i}]", source)
                for i, item in enumerate(value)]
    instead = next((text for kind, text in _INSTEAD if isinstance(value, kind)),
                   "it must be a number, a string, a list or a dict")
    name = f"the class {value.__name__}" if isinstance(value, type) \
        else f"of type {type(value).__name__}"
    raise _C.Error(f"{source}: {key} is {name}; {instead}.")


def whole_number(caller, name, value):
    """`value` as an int; an error that names it if it is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{caller}: {name} is {value!r}, of type {type(value).__name__}; it "
            "must be a whole number.")
    return int(value)

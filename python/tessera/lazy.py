# SPDX-License-Identifier: Apache-2.0
"""Modules that are constructed without memory for their parameters."""
import contextlib

import torch
from torch.nn.modules import module as torch_module

from tessera import _C
from tessera.job import init
from tessera.tree import Tree


class _Constructed:
    """The outermost modules among those that are constructed meanwhile."""

    def __init__(self):
        self._modules = {}
        self._inner = set()

    def add(self, module, _name, _value):
        self._modules[module] = None

    def add_child(self, module, _name, child):
        self._modules[module] = None
        if child is not None:
            self._inner.add(child)

    def outermost(self):
        return [module for module in self._modules if module not in self._inner]


@contextlib.contextmanager
def lazy(seed=None):
    """While it is open, modules are constructed without memory for parameters.

        with tessera.lazy():
            model = Model(config)
        engine = tessera.wrap(model)

    wrap() allocates and initializes each rank's shard only; the values are the
    same for any number of ranks, a function of `seed` (by default drawn from
    torch's generator). Buffers get their memory when the block ends. To use the
    module without an engine, call materialize().
    """
    init()
    constructed = _Constructed()
    hooks = [
        torch_module.register_module_parameter_registration_hook(
            constructed.add),
        torch_module.register_module_buffer_registration_hook(constructed.add),
        torch_module.register_module_module_registration_hook(
            constructed.add_child),
    ]
    scope = _C.LazyScope(seed)
    try:
        yield
        for module in constructed.outermost():
            scope.finish(Tree(module).root)
    finally:
        del scope
        for hook in hooks:
            hook.remove()


def materialize(module):
    """Gives the parameters of a module that was made by lazy() their values."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"materialize: {type(module).__name__} is not a torch.nn.Module.")
    _C.materialize(Tree(module).root)

# SPDX-License-Identifier: Apache-2.0
"""The C++ view of a Python module: the same tensors under the same names."""
import torch

from tessera import _C

_ROLES = (
    ((torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict),
     "container"),
    ((torch.nn.Embedding, torch.nn.EmbeddingBag), "embedding"),
    (torch.nn.Linear, "linear"),
)


def _role_of(module):
    for types, role in _ROLES:
        if isinstance(module, types):
            return role
    return ""


def persistent_buffers(module):
    """The buffers that are saved; others are functions of the configuration."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def _has_extra_state(module):
    # As torch's state_dict() decides.
    return (type(module).get_extra_state
            is not torch.nn.Module.get_extra_state)


class _Node:
    """A module as it was wrapped."""

    def __init__(self, module, view):
        self.module = module
        self.view = view  # a _C.ModuleTree
        self.parameters = dict(module._parameters)
        self.children = dict(module._modules)

    def is_as_wrapped(self):
        return (_are_same(self.parameters, self.module._parameters)
                and _are_same(self.children, self.module._modules))


def _are_same(before, now):
    # Tensors have no equality that is true or false.
    return before.keys() == now.keys() and all(
        now[name] is one for name, one in before.items())


def _fail(kind, name, change):
    raise _C.Error(
        f"{kind} {name!r} {change} after wrap(), so that the engine would not "
        "train or save it as it is now. Change the module before wrap(), or "
        "call engine.unwrap() and wrap it again; to change values, write them "
        "in place: with engine.gather(writable=True).")


class Tree:
    """A _C.ModuleTree of a module, and what the module has become since."""

    def __init__(self, module):
        self._nodes = {}
        self._module = module
        self._wrapped = {
            id(one): (name, one) for name, one in module.named_parameters()}
        self.root = self._view(module)

    def _view(self, module):
        if module in self._nodes:
            return self._nodes[module].view
        view = _C.ModuleTree(type(module).__name__, _role_of(module))
        self._nodes[module] = _Node(module, view)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                view.add_parameter(name, parameter)
        for name, buffer in persistent_buffers(module):
            view.set_buffer(name, buffer)
        for name, child in module._modules.items():
            if child is not None:
                view.add_module(name, self._view(child))
        return view

    def check(self):
        """Raises an error if the module has other parameters than when it was
        wrapped, or modules with buffers that it had not: they would not be
        trained, or not be saved."""
        if all(node.is_as_wrapped() for node in self._nodes.values()):
            return
        now = {id(one): name for name, one in self._module.named_parameters()}
        for key, name in now.items():
            if key not in self._wrapped:
                _fail("parameter", name, "was added or assigned")
        for key, (name, _) in self._wrapped.items():
            if key not in now:
                _fail("parameter", name, "was removed")
        for path, module in self._module.named_modules():
            if module not in self._nodes:
                for name, _ in persistent_buffers(module):
                    _fail("buffer", f"{path}.{name}", "was added")

    def modules(self):
        return list(self._nodes)

    def parameters(self):
        return [parameter for _, parameter in self._wrapped.values()]

    def extra_states(self):
        """Names in a state_dict(), and modules that have get_extra_state()."""
        for path, module in self._module.named_modules(
                remove_duplicate=False):
            if _has_extra_state(module):
                yield (path + "." if path else "") + "_extra_state", module

    def refresh(self):
        """check(), and takes over buffers that were assigned anew, before they
        are saved."""
        self.check()
        for node in self._nodes.values():
            for name, buffer in persistent_buffers(node.module):
                node.view.set_buffer(name, buffer)

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


def _registered(module):
    return (*module._parameters.values(), *module._modules.values())


class _Node:
    """A module, as its view in C++ has it."""

    def __init__(self, module):
        self._module = module
        self._wrapped = {name: one for name, one in module._parameters.items()
                         if one is not None}
        self.view = _C.ModuleTree(type(module).__name__, _role_of(module))
        self._seen = ()
        self._numbers = ()

    def is_as_seen(self):
        # What was seen is kept, so that no number comes again.
        return self._numbers == tuple(map(id, _registered(self._module)))

    def renamed(self, names):
        """A parameter that the module had, and has under this name no more,
        though it is still in the model, and all that it is called there.

        names: of all parameters of the model, by id.
        """
        for name, one in self._wrapped.items():
            if self._module._parameters.get(name) is not one and (
                    id(one) in names):
                return name, names[id(one)]
        return None

    def take_over(self, view_of):
        """Gives the view what the module has now; view_of: of a child."""
        self._seen = _registered(self._module)
        self._numbers = tuple(map(id, self._seen))
        self.view.clear()
        for name, parameter in self._module._parameters.items():
            if parameter is not None:
                self.view.add_parameter(name, parameter)
        for name, child in self._module._modules.items():
            if child is not None:
                self.view.add_module(name, view_of(child))

    def take_over_buffers(self):
        for name, buffer in persistent_buffers(self._module):
            self.view.set_buffer(name, buffer)


class Tree:
    """A _C.ModuleTree of a module, which follows what the module becomes."""

    def __init__(self, module):
        self._nodes = {}
        self._module = module
        self._wrapped = dict(module.named_parameters(remove_duplicate=False))
        self._has_renamed = False
        self.root = self._view(module)

    def _view(self, module):
        if module not in self._nodes:
            node = self._nodes[module] = _Node(module)
            node.take_over(self._view)
            node.take_over_buffers()
        return self._nodes[module].view

    def refresh(self):
        """Takes over parameters and modules that were added, replaced or
        removed. The engine refuses those that it would not train or save; names
        that are no longer the module's are refused here."""
        changed = [node for node in self._nodes.values()
                   if not node.is_as_seen()]
        for node in changed:
            node.take_over(self._view)
        if changed or self._has_renamed:
            self._check_names()

    def _check_names(self):
        names = {}
        for name, one in self._module.named_parameters(remove_duplicate=False):
            names.setdefault(id(one), []).append(name)
        self._has_renamed = True
        for module in self._module.modules():
            renamed = self._nodes[module].renamed(names)
            if renamed:
                wrapped, now = renamed
                path = next(path for path, one in self._module.named_modules()
                            if one is module)
                raise _C.Error(
                    f"parameter '{path + '.' * bool(path)}{wrapped}' was "
                    f"renamed after wrap(), and is now '{now[0]}', as by "
                    "torch.nn.utils.prune: the engine would save it under its "
                    "old name. Change the module before wrap(), or call "
                    "engine.unwrap() first and wrap it again.")
        self._has_renamed = False

    def refresh_buffers(self):
        """refresh(), and buffers that were assigned anew, before they are
        saved."""
        self.refresh()
        for node in self._nodes.values():
            node.take_over_buffers()

    def modules(self):
        return list(self._nodes)

    def parameters(self):
        """Those that were wrapped."""
        return list({id(one): one for one in self._wrapped.values()}.values())

    def parameter(self, name):
        """The one that the engine knows by that name."""
        return self._wrapped[name]

    def extra_states(self):
        """Names in a state_dict(), and modules that have get_extra_state()."""
        for path, module in self._module.named_modules(
                remove_duplicate=False):
            if _has_extra_state(module):
                yield (path + "." if path else "") + "_extra_state", module

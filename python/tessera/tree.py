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


class Tree:
    """A _C.ModuleTree, and how to follow buffers that the module replaces."""

    def __init__(self, module):
        self._nodes = {}
        self._parameters = []
        self.root = self._node(module)

    def _node(self, module):
        if module in self._nodes:
            return self._nodes[module]
        node = _C.ModuleTree(type(module).__name__, _role_of(module))
        self._nodes[module] = node
        for name, parameter in module._parameters.items():
            if parameter is not None:
                node.add_parameter(name, parameter)
                self._parameters.append((module, name, parameter))
        for name, buffer in persistent_buffers(module):
            node.set_buffer(name, buffer)
        for name, child in module._modules.items():
            if child is not None:
                node.add_module(name, self._node(child))
        return node

    def check_parameters(self):
        """Raises an error if a parameter has been assigned anew."""
        for module, name, parameter in self._parameters:
            if module._parameters.get(name) is not parameter:
                raise _C.Error(
                    f"parameter {name!r} of a {type(module).__name__} was "
                    "replaced after wrap(), so that it would not be trained. "
                    "Assign it before wrap(), or write the values in place: "
                    "with engine.gather(writable=True).")

    def modules(self):
        return list(self._nodes)

    def parameters(self):
        """Every parameter, some of them several times."""
        return [parameter for _, _, parameter in self._parameters]

    def refresh_buffers(self):
        """Takes over buffers that were assigned anew, before they are saved."""
        for module, node in self._nodes.items():
            for name, buffer in persistent_buffers(module):
                node.set_buffer(name, buffer)

# SPDX-License-Identifier: Apache-2.0
"""Reads of parameters' memory without an operator of torch."""
import torch

from tessera import _C


def guard():
    """From now on, numpy() of a parameter whose memory is shared with others is
    an error: the array would have the values of others later on, and what is
    written to it would be lost. Python's __array__() calls it. So is one, or a
    list, of a tensor-parallel rank's part of a parameter, as operators on it
    are."""
    plain = torch.Tensor.numpy
    if getattr(plain, "of_tessera", False):
        return

    def numpy(self, *args, **kwargs):
        _C.check_no_part(self, "numpy()")
        name = _C.name_without_lasting_memory(self)
        if name is not None:
            raise _C.Error(
                f"numpy(): parameter {name!r} is sharded: its values are in "
                "memory that other parameters use next, and the array would "
                "not keep them. Call clone() first, read or write it inside an "
                "engine.gather() scope, or take engine.state_dict().")
        return plain(self, *args, **kwargs)

    numpy.__doc__ = plain.__doc__
    numpy.of_tessera = True
    torch.Tensor.numpy = numpy
    plain_list = torch.Tensor.tolist

    def tolist(self):
        _C.check_no_part(self, "tolist()")
        return plain_list(self)

    tolist.__doc__ = plain_list.__doc__
    torch.Tensor.tolist = tolist

# SPDX-License-Identifier: Apache-2.0
"""Whether the torch that is installed is the one that Tessera was built for.

Its C++ interface changes with every version: with another one the extension
module would not load, or crash.
"""
from tessera import _built_with


def check_torch():
    """Imports torch, whose libraries the extension module needs.

    Raises ImportError if torch is missing or of another version.
    """
    needed = _built_with.TORCH_VERSION
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"tessera needs torch {needed}, which cannot be imported: {error}. "
            f"Install it: pip install torch=={needed}") from error
    found = torch.__version__.split("+")[0]
    if found != needed:
        raise ImportError(
            f"tessera was built for torch {needed}, but torch {found} is "
            f"installed. Install torch=={needed}, or build tessera again with "
            "the torch that is here (pip install --no-build-isolation "
            "./python).")
    if bool(torch._C._GLIBCXX_USE_CXX11_ABI) != _built_with.CXX11_ABI:
        raise ImportError(
            "tessera and torch were built with different C++ ABIs "
            f"(_GLIBCXX_USE_CXX11_ABI is {torch._C._GLIBCXX_USE_CXX11_ABI} in "
            "torch). Build tessera with the torch that is here.")

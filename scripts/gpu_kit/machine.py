# SPDX-License-Identifier: Apache-2.0
"""What the machine, or its Python, has."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

TORCH = "2.11.0"


class Lacking(Exception):
    """What the machine, or its Python, would have to have."""


def device_gib():
    """Memory of the first device."""
    try:
        return float(subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total",
             "--format=csv,noheader,nounits", "--id=0"],
            check=True, capture_output=True, text=True).stdout) / 1024
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise Lacking(
            f"nvidia-smi does not tell the device's memory: {error}") from error


def host_gib():
    """Memory of the host that is free, or would be."""
    text = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
    return int(re.search(r"MemAvailable:\s*(\d+) kB", text)[1]) / (1 << 20)


def memcheck():
    """The words that start a program under compute-sanitizer, where it is; or
    nothing."""
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")
    return [program, "--tool", "memcheck", "--target-processes", "all",
            "--error-exitcode", "99"] if program else []


def library_path(folder):
    """The packed libraries, the wheel's, and those that the wheel depends on."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: libraries of the wheel
        raise Lacking(f"{sys.executable} has no torch that it can import "
                      f"({error}); PYTHON= names another Python.") from error
    root = pathlib.Path(torch.__file__).parent
    version = torch.__version__.split("+")[0]
    if version != TORCH:
        raise Lacking(f"torch is {version}; the tests need {TORCH}.")
    nvidia = sorted(root.parent.glob("nvidia/*/lib"))
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([str(folder / "lib"), str(root / "lib"), *map(str, nvidia),
                     *([known] if known else [])])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what every tracked file must hold to: licence line, include guard,
no trailing spaces, a newline at the end, no large files. And tests of GPUs to
not asking LibTorch about CUDA.

    check_sources.py        (from the root of the checkout)
"""

import pathlib
import re
import subprocess
import sys

SPDX = "SPDX-License-Identifier: Apache-2.0"
HEADERS = {".h", ".cuh"}
CODE = HEADERS | {".cpp", ".cu", ".py", ".sh", ".cmake"}
CODE_NAMES = {"CMakeLists.txt", "Makefile"}
MIB = 2**20
MAX_FILE_BYTES = 2 * MIB
MAX_TREE_BYTES = 28 * MIB
# The tests of GPUs, and the headers with the bodies that they share with others.
GPU_TEST = re.compile(r"(_gpu_test\.cpp|(^|/)device_\w+\.h|_cases\.h)$")
# Before the back end is loaded LibTorch knows no CUDA device, and it caches that
# answer, so that all tests of the process skip.
CUDA_WORDS = re.compile(r"torch::cuda::|\bat::cuda::|hasCUDA")
# The virtual device, which stands in for CUDA in gpu_tests_on_vdev, has another
# name. (A header may plan for CUDA.)
CUDA_DEVICE = re.compile(r"\bkCUDA\b")

# See [Note: remove_all].
REMOVE_ALL = re.compile(r"\bremove_all\(")


def tracked_files():
    """Tracked files, and new ones that git does not ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    ).stdout.decode()
    paths = (pathlib.Path(name) for name in listing.split("\0") if name)
    return sorted({p for p in paths if p.is_file() and not p.is_symlink()})


def check_code(path, lines):
    if not any(SPDX in line for line in lines[:2]):
        yield f"{path}:1: the first lines lack '{SPDX}'"
    if path.suffix in HEADERS:
        if "#pragma once" not in lines[:3]:
            yield f"{path}:2: a header must begin with '#pragma once'"
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("using namespace"):
                yield f"{path}:{number}: no 'using namespace' in a header"
    if path.suffix in HEADERS | {".cpp"}:
        for number, line in enumerate(lines, 1):
            if REMOVE_ALL.search(line.split("//")[0]):
                yield f"{path}:{number}: runtime::remove_tree() in place of remove_all()"


def check_gpu_test(path, lines):
    for number, line in enumerate(lines, 1):
        is_test = path.suffix == ".cpp"
        if found := CUDA_WORDS.search(line) or (
                is_test and CUDA_DEVICE.search(line)):
            yield (f"{path}:{number}: '{found[0]}' in a test of GPUs: ask "
                   "load_cuda_backend(), and name tests::cuda_device()")


def check_text(path, text):
    """Complaints about a text file."""
    lines = text.split("\n")
    if path.suffix in CODE or path.name in CODE_NAMES:
        yield from check_code(path, lines)
    if path.parts[0] == "tests" and GPU_TEST.search(path.as_posix()):
        yield from check_gpu_test(path, lines)
    for number, line in enumerate(lines, 1):
        if line.endswith((" ", "\t", "\r")):
            yield f"{path}:{number}: trailing space or carriage return"
    if text and not text.endswith("\n"):
        yield f"{path}:{len(lines)}: no newline at the end of the file"


def check_files(paths):
    total = 0
    for path in paths:
        data = path.read_bytes()
        total += len(data)
        if len(data) > MAX_FILE_BYTES:
            size = f"{len(data) / MIB:.1f} MiB"
            yield f"{path}: {size}; a tracked file must be smaller than 2 MiB"
        # Fixtures hold the bytes that their reference wrote.
        if b"\0" in data or "fixtures" in path.parts[:-1] and (
            path.suffix not in CODE
        ):
            continue
        try:
            yield from check_text(path, data.decode("utf-8"))
        except UnicodeDecodeError:
            yield f"{path}: the text is not UTF-8"
    if total >= MAX_TREE_BYTES:
        size = f"{total / MIB:.1f} MiB"
        yield f"the tracked files have {size}; they must stay under {MAX_TREE_BYTES / MIB:.1f} MiB"


def main():
    complaints = list(check_files(tracked_files()))
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()

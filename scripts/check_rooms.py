#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes between the rooms only point down the house:

    tasks -> {zoo, planner} -> {text, engine -> {sharding, offload, pipeline}}
                                                                 -> runtime

No include points up or sideways, and none leaves a room by a relative path,
which this check could not see. The folders of a room have an order too.

    check_rooms.py [ROOT]
"""

import pathlib
import re
import sys

MIDDLE = ("sharding", "offload", "pipeline")
MAY_INCLUDE = {
    "runtime": {"runtime"},
    **{room: {room, "runtime"} for room in MIDDLE},
    "engine": {"engine", "runtime", *MIDDLE},
    "planner": {"planner", "engine", "runtime", *MIDDLE},
    "text": {"text", "runtime"},
    "zoo": {"zoo", "text", "engine", "runtime", *MIDDLE},
    "tasks": {"tasks", "zoo", "planner", "text", "engine", "runtime", *MIDDLE},
}
# From the bottom: a folder of the room includes only those before it. "" is the
# room itself, the files that are in none.
FOLDERS = {
    "runtime": (
        "core",
        "io",
        "hub",
        "streams",
        "threads",
        "profile",
        "memory",
        "random",
        "dry_run",
        "kernels",
        "launch",
        "comm",
        "cuda",
    ),
    "sharding": (
        "interception",
        "tensors",
        "plans",
        "lazy",
        "collectives",
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "groups",
        "pages",
        "paging",
        "weights",
        "inspection",
        "checkpointing",
    ),
    "offload": ("options", "stores", "activations", "updates", "placement"),
    "pipeline": ("",),
    "engine": (
        "report",
        "optim",
        "options",
        "memory",
        "checkpoint",
        "parallel",
        "",
        "schedule",
        "data",
        "helpers",
        "profile",
        "trainer",
    ),
    "planner": ("", "search"),
    "text": ("tokenizer", "metrics", "chat", "rows"),
    "zoo": (
        "layers",
        "images",
        "formats",
        "inputs",
        "heads",
        "models",
        "vision",
        "gguf",
        "adapters",
        "generation",
        "data",
    ),
    "tasks": ("",),
}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")


def check_folders(room, folder, target):
    """What is wrong with an include from one folder of a room to another."""
    order = FOLDERS[room]
    for name in (folder, target):
        if name not in order:
            place = f"{room}/{name}" if name else f"{room} itself"
            return f"{place} is not one of {room}'s folders: " + ", ".join(order)
    if order.index(target) > order.index(folder):
        return f"{room}/{folder} must not include {room}/{target}, which comes after it"
    return None


def folder_of(parts):
    """The folder of a path in a room, "" for a file of the room itself."""
    return parts[0] if len(parts) > 1 else ""


def check_include(root, file, quote, path):
    """What is wrong with one include of `file`, a path from the root, or None."""
    room, *place = file.parts
    parts = path.split("/")
    if parts[0] != "tessera":
        if quote == '"' or ".." in parts:
            return f'write it as "tessera/<room>/.../{parts[-1]}"'
        return None
    if len(parts) < 3 or parts[1] not in MAY_INCLUDE:
        return "there is no such room; rooms: " + ", ".join(MAY_INCLUDE)
    if parts[1] not in MAY_INCLUDE[room]:
        allowed = ", ".join(sorted(MAY_INCLUDE[room]))
        return f"{room} must not include {parts[1]} (it may include {allowed})"
    if not root.joinpath(*parts[1:]).is_file():
        return "there is no such file"
    if parts[1] == room and room in FOLDERS:
        return check_folders(room, folder_of(place), folder_of(parts[2:]))
    return None


def check_tree(root):
    """All complaints about the rooms under `root`, as lines of text."""
    complaints = []
    for room in MAY_INCLUDE:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file():
                continue
            lines = file.read_text(encoding="utf-8").splitlines()
            file = file.relative_to(root)
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                problem = match and check_include(root, file, *match.groups())
                if problem:
                    complaints.append(f"{file}:{number}: {line.strip()}: {problem}")
    return complaints


def main():
    here = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    complaints = check_tree(root)
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()

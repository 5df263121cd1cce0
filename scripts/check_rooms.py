#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes between the rooms only point down the house:

    zoo -> engine -> {sharding, offload, pipeline} -> runtime

No include points up or sideways, and none leaves a room by a relative path,
which this check could not see.

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
    "zoo": {"zoo", "engine", "runtime", *MIDDLE},
}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")


def check_include(root, room, quote, path):
    """What is wrong with one include of a file in `room`, or None."""
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
    return None


def check_tree(root):
    """All complaints about the rooms under `root`, as lines of text."""
    complaints = []
    for room in MAY_INCLUDE:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file():
                continue
            lines = file.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                problem = match and check_include(root, room, *match.groups())
                if problem:
                    where = f"{file.relative_to(root)}:{number}"
                    complaints.append(f"{where}: {line.strip()}: {problem}")
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

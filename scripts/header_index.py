#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/headers.md, the index of the headers that programs include, from
include/tessera/public_headers.txt and the first sentence of each header.

    header_index.py            checks that the page is as it would be written
    header_index.py --write    writes it
"""

import pathlib
import re
import sys

HEADERS = "include/tessera/public_headers.txt"
PAGE = "docs/headers.md"

# Titles, each with the folders whose headers it has. The first one that fits.
SECTIONS = [
    ("Optimizers", ["engine/optim", "offload/updates"]),
    ("Learning rate", ["engine/schedule"]),
    ("Batches", ["engine/data"]),
    ("Checkpoints and weights", ["engine/checkpoint", "sharding/weights"]),
    ("The trainer", ["engine/trainer", "engine/profile"]),
    ("Memory: plans and tiers", ["planner", "runtime/dry_run", "offload", "runtime/memory"]),
    ("Choices for groups, dtypes and communication", ["sharding/groups", "sharding/pages", "sharding/paging"]),
    ("Lazy models", ["sharding/lazy"]),
    ("Recomputation", ["sharding/checkpointing"]),
    ("Ranks and meshes", ["runtime/comm"]),
    ("Tensor and context parallelism", ["sharding/collectives", "sharding/tensor_parallel", "sharding/context_parallel", "sharding/tensors"]),
    ("Pipelines", ["pipeline", "engine/parallel"]),
    ("Statistics of a model", ["sharding/inspection", "engine/inspect_engine.h"]),
    ("Operators", ["engine/helpers", "runtime/kernels", "runtime/random"]),
    ("The engine", ["engine"]),
    ("Errors and log", ["runtime/core"]),
]
ORDER = ["The engine", *[title for title, _ in SECTIONS if title != "The engine"]]

INTRODUCTION = """\
# Public headers

What a program may include, by task; each header documents what it declares.
`tessera/tessera.h` has what [a training loop](training_loop.md) needs. Beside it,
`tessera/blocks.h` has BMTrain's blocks, `tessera/parallel.h` tensor-, context- and
pipeline-parallel layers and meshes, `tessera/trainer.h` the trainer, and
`tessera/zoo.h` the model zoo (link `tessera::zoo`). Written by
`scripts/header_index.py` from the headers.
"""


def section(header):
    for title, folders in SECTIONS:
        for folder in folders:
            if header == folder or header.startswith(folder + "/"):
                return title
    raise SystemExit(f"{HEADERS}: {header} belongs to no section of scripts/header_index.py")


def summary(path):
    """The first sentence of a header's leading comment."""
    lines = []
    for line in path.read_text().split("#pragma once\n", 1)[1].splitlines():
        if not line.startswith("// "):
            break
        lines.append(line[3:])
    text = " ".join(lines)
    end = re.search(r"\.(?= [A-Z`]|$)", text)
    if not end:
        raise SystemExit(f"{path}: the comment after #pragma once does not begin with a sentence")
    return text[: end.start()].replace("|", "\\|") + "."


def page(root):
    rows = {title: [] for title in ORDER}
    for header in sorted((root / HEADERS).read_text().split()):
        rows[section(header)].append(f"| [`{header}`](../{header}) | {summary(root / header)} |")
    parts = [INTRODUCTION]
    for title, lines in rows.items():
        table = "\n".join(["| `tessera/` | |", "| --- | --- |", *lines])
        parts.append(f"## {title}\n\n{table}\n")
    return "\n".join(parts)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    written = page(root)
    if "--write" in sys.argv[1:]:
        (root / PAGE).write_text(written)
        return 0
    if (root / PAGE).read_text() == written:
        return 0
    print(f"{PAGE} is not as the headers have it; run scripts/header_index.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes train.jsonl and heldout.jsonl from apt's package lists.

Every row is the description of one Debian package, labelled with the section
that the archive files it under. Needs only the standard library, `apt-cache`
and English long descriptions, which apt keeps unless Acquire::Languages says
otherwise (container images often do). The same package lists give the same
bytes: nothing is drawn at random.

    ./make_sample.py [-o KEY=VALUE ...] [--out FOLDER]

`-o` goes to apt unchanged. With lists of its own, and no change to the system:

    mkdir -p /tmp/lists/partial
    apt-get -o Dir::State::lists=/tmp/lists -o Acquire::Languages=en update
    ./make_sample.py -o Dir::State::lists=/tmp/lists -o Acquire::Languages=en
"""

import argparse
import collections
import hashlib
import json
import pathlib
import re
import subprocess
import sys

SECTIONS = (
    "admin",
    "fonts",
    "games",
    "graphics",
    "javascript",
    "net",
    "python",
    "science",
    "sound",
    "text",
)
HELDOUT_PER_SECTION = 60
TRAIN_PER_SECTION = 400  # at most: some sections have fewer packages
MAX_CHARACTERS = 400
MIN_CHARACTERS = 80
# Two rows whose three-word sequences overlap more than this tell the same
# story (families of fonts, bindings, plug-ins); only one of them is kept.
MAX_OVERLAP = 0.3

# Packages that repeat the description of a sibling or describe packaging.
SIBLING = re.compile(
    r"-(dbg|dbgsym|dev|doc|docs|data|l10n|examples?|headers|source|src)$|-dev-"
)
PACKAGING = re.compile(
    r"transitional|dummy package|meta-?\s?package|debug(ging)? symbols",
    re.IGNORECASE,
)
# Nobody's mail address belongs into a data set.
ADDRESS = re.compile(r"\S+@\S+\.\S+")
# Names such as node-semver or python3-yaml carry the label in their prefix.
TELLING_NAME = re.compile(
    r"\b(?:python3?|node|libjs|fonts|ttf|otf)-[a-z0-9][a-z0-9.+-]*[a-z0-9]\b"
)


def apt(*command):
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"make_sample.py: '{' '.join(command)}' failed: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout.decode("utf-8")


def records(text):
    """Yields the fields of each paragraph of a Debian control file."""
    for paragraph in text.split("\n\n"):
        fields, key = {}, None
        for line in paragraph.split("\n"):
            if line.startswith((" ", "\t")) and key:
                fields[key] += "\n" + line[1:]
            elif ":" in line:
                key, value = line.split(":", 1)
                fields[key] = value.strip()
        if fields:
            yield fields


def read_descriptions(options):
    """Maps (package, md5 of the description) to the English description."""
    files = apt(
        "apt-get",
        *options,
        "indextargets",
        "--format",
        "$(FILENAME)",
        "Created-By: Translations",
        "Language: en",
    ).split()
    found = {}
    for file in files:
        text = apt("/usr/lib/apt/apt-helper", *options, "cat-file", file)
        for fields in records(text):
            key = fields.get("Package"), fields.get("Description-md5")
            if "Description-en" in fields:
                found[key] = fields["Description-en"]
    if not found:
        sys.exit(
            "make_sample.py: apt has no English long descriptions. Run "
            "'apt-get -o Acquire::Languages=en update' and pass "
            "'-o Acquire::Languages=en', or see the top of this script."
        )
    return found


def to_text(description):
    """Synopsis and first sentences, on one line, at most MAX_CHARACTERS."""
    synopsis, _, body = description.partition("\n")
    lines = [" " if line.strip() == "." else line for line in body.split("\n")]
    body = " ".join(" ".join(lines).split())
    synopsis = synopsis.strip().rstrip(".")
    text = TELLING_NAME.sub("this package", f"{synopsis}. {body}").strip()
    if len(text) <= MAX_CHARACTERS:
        return text
    cut = text[:MAX_CHARACTERS]
    end = max(cut.rfind(mark) for mark in (". ", "! ", "? "))
    if end >= MAX_CHARACTERS // 2:
        return cut[: end + 1]
    return cut[: cut.rfind(" ")]


def shingles(text):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def stable_order(name):
    return hashlib.sha256(name.encode()).hexdigest()


def candidates(options):
    """One (name, section, text) for each source package of our sections."""
    descriptions = read_descriptions(options)
    best = {}
    for fields in records(apt("apt-cache", *options, "dumpavail")):
        name = fields.get("Package", "")
        section = fields.get("Section", "").split("/")[-1]
        key = name, fields.get("Description-md5")
        if section not in SECTIONS or SIBLING.search(name):
            continue
        if key not in descriptions or PACKAGING.search(descriptions[key]):
            continue
        source = fields.get("Source", name).split()[0]
        # The package named like its source, else the shortest name.
        rank = name != source, len(name), name
        if source not in best or rank < best[source][0]:
            best[source] = rank, name, section, to_text(descriptions[key])
    rows = [
        row[1:]
        for row in best.values()
        if len(row[3]) >= MIN_CHARACTERS and not ADDRESS.search(row[3])
    ]
    return sorted(rows, key=lambda row: stable_order(row[0]))


def without_near_duplicates(rows):
    kept, seen_in = [], collections.defaultdict(list)
    sizes = []
    for row in rows:
        mine = shingles(row[2])
        shared = collections.Counter(i for s in mine for i in seen_in[s])
        # Measured against the smaller of the two, so that a short text
        # contained in a long one counts as the same.
        if any(
            n > MAX_OVERLAP * min(len(mine), sizes[i])
            for i, n in shared.items()
        ):
            continue
        for s in mine:
            seen_in[s].append(len(kept))
        sizes.append(len(mine))
        kept.append(row)
    return kept


def split(rows):
    train, heldout, counts = [], [], collections.Counter()
    for name, section, text in rows:
        counts[section] += 1
        if counts[section] <= HELDOUT_PER_SECTION:
            heldout.append((name, section, text))
        elif counts[section] <= HELDOUT_PER_SECTION + TRAIN_PER_SECTION:
            train.append((name, section, text))
    return train, heldout


def write(path, rows):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for _, section, text in rows:
            row = {"text": text, "label": section}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", action="append", default=[], metavar="KEY=VALUE")
    here = pathlib.Path(__file__).parent
    parser.add_argument("--out", type=pathlib.Path, default=here)
    arguments = parser.parse_args()
    options = [part for value in arguments.o for part in ("-o", value)]
    train, heldout = split(without_near_duplicates(candidates(options)))
    write(arguments.out / "train.jsonl", train)
    write(arguments.out / "heldout.jsonl", heldout)
    for title, rows in (("train", train), ("heldout", heldout)):
        counts = collections.Counter(section for _, section, _ in rows)
        majority = max(counts.values()) / len(rows)
        print(f"{title}: {len(rows)} rows, majority {majority:.4f}")
        for section in SECTIONS:
            print(f"  {section:12}{counts[section]:5}")


if __name__ == "__main__":
    main()

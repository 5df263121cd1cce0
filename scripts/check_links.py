#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the relative links and anchors of all Markdown files, and that the
index of the manual has every page of docs/.

    check_links.py [ROOT]
"""

import pathlib
import re
import subprocess
import sys
import urllib.parse

INDEX = "docs/README.md"
FENCE = re.compile(r" *(```+|~~~+)")
HEADING = re.compile(r"#{1,6} +(.*?)(?: +#+)?$")
CODE = re.compile(r"(`+)(?:.*?)\1", re.S)
# [text](target); the text may span lines and contain brackets of images.
LINK = re.compile(r"\]\(\s*<?((?:[^()\s>]+)?(?:\([^()\s]*\)[^()\s]*)?)>?(?:\s+\"[^\"]*\")?\s*\)")
LOCAL = re.compile(r"(?![a-z][a-z0-9+.-]*:|//)")


def prose(text):
    """The text without fenced blocks; lines keep their numbers."""
    fence = None
    lines = []
    for line in text.split("\n"):
        found = FENCE.match(line)
        if fence is None and found:
            fence = found.group(1)
            line = ""
        elif fence is not None:
            if line.strip() == fence:
                fence = None
            line = ""
        lines.append(line)
    return "\n".join(lines)


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    heading = re.sub(r"[^\w\- ]", "", heading.lower())
    return heading.replace(" ", "-")


def anchors(text):
    """Anchors of a page; repeated headings are numbered."""
    seen = {}
    names = set()
    for line in prose(text).split("\n"):
        if found := HEADING.match(line):
            name = anchor(found.group(1))
            number = seen.get(name, 0)
            seen[name] = number + 1
            names.add(f"{name}-{number}" if number else name)
    return names


def links(text):
    """(line, target) of the links outside of code."""
    page = CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), prose(text))
    for found in LINK.finditer(page):
        if LOCAL.match(found.group(1)):
            yield page.count("\n", 0, found.start()) + 1, found.group(1)


def complaints(root, pages):
    texts = {page: (root / page).read_text() for page in pages}
    known = {page: anchors(text) for page, text in texts.items()}
    for page, text in texts.items():
        for line, target in links(text):
            path, _, name = target.partition("#")
            place = f"{page}:{line}: ({target})"
            if not target:
                yield f"{place}: the link is empty"
                continue
            goal = (root / page).parent / urllib.parse.unquote(path) if path else root / page
            if not goal.exists():
                yield f"{place}: there is no such file"
                continue
            try:
                file = str(goal.resolve().relative_to(root.resolve()))
            except ValueError:
                yield f"{place}: is outside of the project"
                continue
            if name and file in known and name not in known[file]:
                yield f"{place}: {file} has no heading with this anchor"
    if INDEX in texts:
        listed = {target.partition("#")[0] for _, target in links(texts[INDEX])}
        for page in pages:
            path = pathlib.PurePath(page)
            if str(path.parent) == "docs" and page != INDEX and path.name not in listed:
                yield f"{INDEX}: has no link to {path.name}"


def markdown_files(root):
    """Tracked pages, and new ones that git does not ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return sorted({name for name in listing.split("\0") if name and (root / name).is_file()})


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = list(complaints(root, markdown_files(root)))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of a Markdown page, each with what its test does with it.

    blocks.py write PAGE FOLDER     writes the blocks that are marked as files

A comment before a block says how it is tested:

    <!-- doc-test: run short="training.max_steps=2" -->

| language | mark | the test |
| --- | --- | --- |
| cpp | context=NAME | compiles it as the body of a function with the names of a context of make_snippets.py |
| cpp | program=NAME | compiles it as a program |
| sh | none | runs it with commands that check their arguments only (stubs.sh) |
| sh | run, short="KEY=VALUE ..." | runs it; `short` is added to `tessera train` |
| sh | syntax reason="..." | only parses it |
| json | none | a configuration, which `tessera train --check` reads |
| json | config=FILE, with="KEY=VALUE" | keys that extend a configuration; `with` is added to the command |
| json | model | a config.json of a model, which `tessera plan` makes |
| json | rows | JSON lines |
| python | none | parsed |
| yaml | none | parsed; `args` that begin with a command of tessera are checked |
| csv, cmake | file=NAME | written for the blocks below; another test builds CMakeLists.txt |
| text | none | output and pictures, nothing is checked |

file=NAME writes any block to a file for the blocks that follow.
"""

import dataclasses
import pathlib
import re
import shlex
import sys

FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")
MARK = re.compile(r"\s*<!-- doc-test: (.*?) -->\s*")

# The marks that a language knows; those of OBLIGATORY need one of these.
MARKS = {
    "cpp": {"context", "program", "file"},
    "sh": {"run", "short", "syntax", "reason"},
    "json": {"config", "with", "model", "rows", "file"},
    "python": set(),
    "yaml": set(),
    "csv": {"file"},
    "cmake": {"file"},
    "text": set(),
}
OBLIGATORY = {"cpp": {"context", "program"}, "csv": {"file"}, "cmake": {"file"}}


class PageError(Exception):
    """A block that no test can be made of; the message begins with its place."""


@dataclasses.dataclass
class Block:
    page: str
    line: int  # of the fence
    language: str
    text: str
    marks: dict

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def marks_of(text, place):
    """{"run": "", "short": "a=1"} of 'run short="a=1"'."""
    marks = {}
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        marks[name] = value
    return marks


def check(block):
    known = MARKS.get(block.language)
    if known is None:
        raise PageError(
            f"{block.place}: no test knows the language '{block.language}'; "
            f"the languages are {', '.join(MARKS)}"
        )
    for name in block.marks:
        if name not in known:
            raise PageError(f"{block.place}: a block of {block.language} has no mark '{name}'")
    wanted = OBLIGATORY.get(block.language)
    if wanted and not wanted & set(block.marks):
        raise PageError(
            f"{block.place}: a block of {block.language} needs a mark: "
            + " or ".join(sorted(f"{name}=" for name in wanted))
        )
    if "syntax" in block.marks and not block.marks.get("reason"):
        raise PageError(f"{block.place}: `syntax` needs a reason=\"...\"")


def blocks_of(text, page):
    """The blocks of a page, in order.
    @raises PageError for one that cannot be tested."""
    lines = text.split("\n")
    found = []
    marks = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = FENCE.match(line)
        if fence:
            indent, ticks, language = fence.groups()
            begin = number + 1
            number = begin
            while number < len(lines) and lines[number].strip() != ticks:
                number += 1
            if number == len(lines):
                raise PageError(f"{page}:{begin}: the block does not end")
            body = [row.removeprefix(indent) for row in lines[begin:number]]
            block = Block(page, begin, language.strip(), "\n".join(body) + "\n", marks)
            check(block)
            found.append(block)
            marks = {}
        elif mark := MARK.fullmatch(line):
            marks = marks_of(mark.group(1), f"{page}:{number + 1}")
        elif line.strip() and marks:
            raise PageError(f"{page}:{number + 1}: a doc-test mark stands before its block")
        number += 1
    return found


def read_page(root, page):
    return blocks_of((pathlib.Path(root) / page).read_text(), page)


def main():
    _, command, page, folder = sys.argv
    assert command == "write"
    path = pathlib.Path(page)
    for block in read_page(path.parent, path.name):
        if name := block.marks.get("file"):
            (pathlib.Path(folder) / name).write_text(block.text)


if __name__ == "__main__":
    main()

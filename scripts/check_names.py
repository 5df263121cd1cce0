#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no two files define the same name: the linker would keep one of
two classes of one name, and run its destructor on the other. Checks that code
uses the words of docs/glossary.md rather than those of AVOIDED.

    check_names.py [ROOT]

A room's names are in its namespace: sharding/ in tessera::sharding. What users
call is in tessera itself; the headers of it are listed in
include/tessera/public_headers.txt. Names in unnamed namespaces are a file's
own.
"""

import pathlib
import re
import sys

from check_rooms import MAY_INCLUDE

ROOMS = [*MAY_INCLUDE, "tools"]
PUBLIC_HEADERS = "include/tessera/public_headers.txt"

# Identifiers that say nothing about the value, and names that do. what() of an
# exception is a call.
AVOIDED = {
    "how": "the settings: tp, cp, options",
    "how_": "the settings: tp_, cp_, options_",
    "mine": "self_ and the value: self_span, self_tensor",
    "ours": "native, or self_ and the value",
    "own": "local or self_ and the value, or what it is",
    "places": "indices, offsets, positions, locations",
    "room": "budget, available_bytes",
    "tell": "log_ or report",
    "tells": "logs, reports",
    "theirs": "foreign, or peer_ and the value",
    "told": "logged, reported",
    "what": "label, or the value",
    "what_": "label_, or the value",
    "whole": "full",
    "whole_": "full_",
    "wholes": "full_tensors",
    "FlatRun": "FlatSegment: a run is one of training",
    "ParameterRun": "ParameterSegment: a run is one of training",
}
# Beginnings of such names.
AVOIDED_BEGINNINGS = {
    "mine_": "self_",
    "own_": "local_ or self_",
    "theirs_": "peer_",
    "whole_": "full_",
}
# Words of the field that begin so.
WORDS = {"whole_word"}
IDENTIFIER = re.compile(
    r"\b(?:(?:" + "|".join(AVOIDED) + r")\b(?!\s*\()"
    r"|(?:" + "|".join(AVOIDED_BEGINNINGS) + r")\w+)"
)

# Comments, strings and preprocessor lines hold no names.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)'|^[ \t]*#(?:[^\n\\]|\\.)*(?:\\\n[^\n]*)*",
    re.S | re.M,
)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace(?:\s+([\w:]+))?\s*\{")
TYPE = re.compile(
    r"(?:class|struct|union|enum(?:\s+class)?)\s+(?:\[\[\w+\]\]\s*)?(\w+)"
    r"(?:\s+final)?\s*(?::(?!:)[^;{]*)?\{"
)
CONSTANT = re.compile(r"inline\s+constexpr\s+[^=;{(]*?(\w+)\s*[={]")


def definitions(source):
    """(qualified name, line) of the types and inline constants that a file
    defines in named namespaces."""
    text = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
    scopes = []  # a namespace's name, None for an unnamed one, "" for a block
    position = 0
    while position < len(text):
        character = text[position]
        if character == "}":
            if scopes:
                scopes.pop()
        elif character == "{":
            scopes.append("")
        elif character.isalpha() and (
            position == 0 or not (text[position - 1].isalnum() or text[position - 1] in "_:")
        ):
            if "" not in scopes and (found := NAMESPACE.match(text, position)):
                scopes.append(found.group(1))
                position = found.end()
                continue
            if "" not in scopes and None not in scopes and scopes:
                for pattern in (TYPE, CONSTANT):
                    found = pattern.match(text, position)
                    # A specialisation is a type of its own.
                    if found and "template <>" not in text[max(0, position - 30) : position]:
                        name = "::".join([*scopes, found.group(1)])
                        yield name, text.count("\n", 0, position) + 1
                        position = found.end() - 2
                        break
        position += 1


def avoided(source):
    """(identifier, line, better ones) of names that AVOIDED has, or that begin
    as AVOIDED_BEGINNINGS."""
    text = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
    for found in IDENTIFIER.finditer(text):
        name = found.group()
        better = AVOIDED.get(name) or next(
            (AVOIDED_BEGINNINGS[one] for one in AVOIDED_BEGINNINGS if name.startswith(one)), None
        )
        if name not in WORDS:
            yield name, text.count("\n", 0, found.start()) + 1, better


def public_headers(root):
    listed = root / PUBLIC_HEADERS
    return set(listed.read_text().split()) if listed.exists() else set()


def complaints(root):
    public = public_headers(root)
    for header in sorted(public):
        if not (root / header).exists():
            yield f"{PUBLIC_HEADERS}: there is no {header}"
    places = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or "gloo_shim" in path.parts:
                continue
            file = str(path.relative_to(root))
            wanted = "tessera" if file in public else f"tessera::{room}"
            source = path.read_text()
            for name, line, better in avoided(source):
                yield f"{file}:{line}: {name} is a name to avoid; {better}"
            for name, line in definitions(source):
                place = f"{file}:{line}"
                # A source file also completes the types of public headers.
                if path.suffix in {".h", ".cuh"} and not is_in(wanted, name, public=file in public):
                    yield f"{place}: {name} is not in namespace {wanted}"
                if name in places:
                    yield f"{place}: {name} is also defined in {places[name]}"
                places[name] = place


def is_in(namespace, name, public):
    """Whether a name is in a namespace or in one inside; names of a public
    header are in no room's namespace."""
    inner = name.removeprefix(namespace + "::").split("::")[0]
    return name.startswith(namespace + "::") and not (public and inner in ROOMS)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = list(complaints(root))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

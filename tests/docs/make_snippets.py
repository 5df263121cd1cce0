#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes one C++ source of all C++ blocks of Markdown pages, so that they are
compiled and linked; an error names the page and its line.

    make_snippets.py OUTPUT ROOT PAGE...

A block is the body of a function, whose parameters are the names that its
context declares; a program's main() gets another name.
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True

import blocks  # noqa: E402

TESSERA = ["using namespace tessera;", "namespace zoo = tessera::zoo;"]
SUBJECT = "Net model, tessera::EngineOptions options, at::Tensor input, at::Tensor target"
# Name: what stands before the function, and its parameters; without any, the
# block has definitions. Types that no header has are in contexts.h.
CONTEXTS = {
    # The program of docs/wrap.md, before and after wrap().
    "wrap": ([], SUBJECT),
    "engine": (
        [],
        SUBJECT + ", tessera::Engine& engine, tessera::DataLoader<Batch>& loader,"
        " size_t samples, int64_t batch_size, uint64_t seed, int64_t steps,"
        " Dataset heldout",
    ),
    "readme": ([], "Dataset dataset"),
    # Pages about parts of the library that name its namespace once.
    "zoo": (
        TESSERA,
        "std::string folder, std::string text, std::vector<std::string> classes,"
        " at::Tensor ids, at::Tensor mask, tessera::EngineOptions options",
    ),
    "zoo_training": (
        TESSERA,
        "std::shared_ptr<tessera::zoo::Model> model, tessera::EngineOptions options,"
        " tessera::Engine& engine, tessera::ParallelGroups& groups,"
        " tessera::zoo::ModelInput two_views, int64_t step, int64_t steps",
    ),
    "layouts": (
        TESSERA,
        "tessera::World& world, tessera::ParallelSizes sizes, std::string folder,"
        " std::shared_ptr<torch::nn::Module> model, int64_t head_features,"
        " tessera::zoo::InputOfMicroBatch batch_of",
    ),
    "layers": (
        [*TESSERA, "using namespace tessera::zoo;"],
        "tessera::ParallelGroups& groups, tessera::TensorParallel how,"
        " std::shared_ptr<tessera::zoo::Model> model, tessera::zoo::ModelInput batch,"
        " at::Tensor x, at::Device device, uint64_t seed, int64_t step, int64_t i",
    ),
    "file": ([], None),
    "family": (["using namespace tessera::zoo;"], None),
}
INCLUDE = re.compile(r"\s*#include .*")


def snippet(block):
    """(includes, lines) of a block."""
    lines = block.text.rstrip("\n").split("\n")
    includes = [line.strip() for line in lines if INCLUDE.fullmatch(line)]
    # The lines keep their numbers.
    body = ["" if INCLUDE.fullmatch(line) else line for line in lines]
    name = re.sub(r"\W", "_", f"{block.page}_{block.line}")
    line = f'#line {block.line + 1} "{block.page}"'
    if "program" in block.marks:
        body = [re.sub(r"\bint main\(", f"int {block.marks['program']}_main(", row) for row in body]
        return includes, [f"namespace {name} {{", line, *body, "}"]
    context = block.marks["context"]
    if context not in CONTEXTS:
        raise blocks.PageError(f"{block.place}: make_snippets.py has no context '{context}'")
    before, parameters = CONTEXTS[context]
    if parameters is None:
        return includes, [f"namespace {name} {{", *before, line, *body, "}"]
    # The inner braces let a block declare a name that is a parameter.
    head = [f"namespace {name} {{", "using namespace docs;", *before, f"void block({parameters}) {{ {{"]
    return includes, [*head, line, *body, "} }", "}"]


def source(root, pages):
    includes, texts = [], []
    for page in pages:
        for block in blocks.read_page(root, page):
            if block.language == "cpp":
                own, text = snippet(block)
                includes += own
                texts += ["", *text]
    return "\n".join(
        [
            "// Made by make_snippets.py of the project's Markdown pages.",
            *dict.fromkeys(includes),
            '#include "docs/contexts.h"',
            *texts,
            "",
            '#line 1 "docs_snippets.cpp"',
            "int main() {}",
            "",
        ]
    )


def main():
    output, root, *pages = sys.argv[1:]
    output = pathlib.Path(output)
    try:
        text = source(root, pages)
    except blocks.PageError as error:
        sys.exit(f"error: {error}")
    # What has not changed is not compiled again.
    if not output.exists() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    main()

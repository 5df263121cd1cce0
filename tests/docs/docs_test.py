# SPDX-License-Identifier: Apache-2.0
"""The tests of the documents notice blocks that are wrong.

    docs_test.py --build BUILD_FOLDER
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True

import blocks  # noqa: E402
import make_snippets  # noqa: E402
import run_page  # noqa: E402

BUILD = None


def page_of(language, text, mark=""):
    comment = f"<!-- doc-test: {mark} -->\n" if mark else ""
    return f"# Page\n\n{comment}```{language}\n{text}\n```\n"


class Marks(unittest.TestCase):
    def refuses(self, text, message):
        with self.assertRaises(blocks.PageError) as caught:
            blocks.blocks_of(text, "page.md")
        self.assertIn(message, str(caught.exception))

    def test_a_block_that_nothing_tests_is_refused(self):
        self.refuses(page_of("rust", "x"), "page.md:3: no test knows the language 'rust'")
        self.refuses(page_of("", "x"), "no test knows the language ''")
        self.refuses(page_of("cpp", "x();"), "needs a mark: context= or program=")
        self.refuses(page_of("csv", "a,b"), "needs a mark: file=")
        self.refuses(page_of("sh", "x", "syntax"), "needs a reason")
        self.refuses(page_of("sh", "x", "ruin"), "has no mark 'ruin'")
        self.refuses("```sh\nx\n", "does not end")
        self.refuses("<!-- doc-test: run -->\n\ntext\n", "stands before its block")

    def test_a_block_in_a_list_loses_its_indentation(self):
        (block,) = blocks.blocks_of("1. a\n\n   ```sh\n   x \\\n     y\n   ```\n", "page.md")
        self.assertEqual((block.line, block.text), (3, "x \\\n  y\n"))

    def test_a_snippet_names_its_page_and_line(self):
        text = page_of("cpp", "#include <a>\nint x;", "context=wrap")
        (block,) = blocks.blocks_of(text, "docs/a.md")
        includes, lines = make_snippets.snippet(block)
        self.assertEqual(includes, ["#include <a>"])
        at = lines.index('#line 5 "docs/a.md"')
        self.assertEqual(lines[at + 1 : at + 3], ["", "int x;"])
        block.marks["context"] = "none"
        with self.assertRaises(blocks.PageError):
            make_snippets.snippet(block)


class Pages(unittest.TestCase):
    def complaints(self, text):
        test = run_page.PageTest(BUILD, "page.md")
        return test.complaints_of(text)

    def notices(self, text, message):
        found = self.complaints(text)
        self.assertEqual(len(found), 1, found)
        self.assertIn(message, found[0])

    def test_right_blocks_pass(self):
        train = "tessera launch --nproc 2 -- \\\n  tessera train CONFIG optimizer.lr=1e-4"
        for text in (
            page_of("sh", train),
            page_of("sh", 'srun --x 2 \\\n  tessera train CONFIG "data.train=$HOME"'),
            page_of("sh", "tessera keys optimizer", "run"),
            page_of("sh", "make demo\nctest -R parity"),
            page_of("json", '"optimizer": {"lr": 1}', f"config={run_page.CONFIG}"),
            "Set `training.epochs=2`, `optimizer.lr`, `model.safetensors`.\n",
        ):
            self.assertEqual(self.complaints(text), [], text)

    def test_wrong_options_are_noticed(self):
        for line in (
            "tessera train CONFIG --wrong",
            "tessera generate --model a --wrong",
            "tessera launch --wrong 2 -- tessera train CONFIG",
            "srun tessera launch --nproc 2 -- tessera train CONFIG --wrong",
            "docker run --rm tessera launch --nproc 2 -- tessera predict a --wrong",
        ):
            self.notices(page_of("sh", line), "--wrong")

    def test_wrong_keys_are_noticed(self):
        for text in (
            page_of("sh", "tessera train CONFIG optimizer.rate=1"),
            page_of("sh", "tessera predict a --set optimizer.rate=1"),
            page_of("json", '"optimizer": {"rate": 1}', f"config={run_page.CONFIG}"),
            "Set `optimizer.rate=1`.\n",
        ):
            self.notices(text, "rate")
        self.notices(page_of("sh", "tessera train CONFIG optimizer.lr=fast"), "optimizer.lr")

    def test_wrong_commands_are_noticed(self):
        for line in (
            "tesera train CONFIG",
            "tessera trian CONFIG",
            "make demos",
            "ctest -R no_such_test",
            "cmake --preset wrong",
            "build/release/bin/no_such_tests",
            "python3 examples/no_such.py",
            "tessera train CONFIG '",
        ):
            self.notices(page_of("sh", line), "page.md:3")
        self.notices(page_of("sh", "tessera keys wrong", "run"), "wrong")

    def test_wrong_data_is_noticed(self):
        for language, text, mark in (
            ("json", "{", "rows"),
            ("json", '{"a": 1}', ""),
            ("python", "def", ""),
            ("yaml", "a: [", ""),
            ("yaml", "args: [train, CONFIG, optimizer.rate=1]", ""),
        ):
            self.notices(page_of(language, text, mark), "page.md")


if __name__ == "__main__":
    at = sys.argv.index("--build")
    BUILD = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The check of links finds what it is there to find."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_links  # noqa: E402


class CheckLinks(unittest.TestCase):
    def complaints(self, **pages):
        """What is said about pages of these texts: docs__name='...'."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            names = []
            for name, text in pages.items():
                names.append(name.replace("__", "/") + ".md")
                path = root / names[-1]
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            return list(check_links.complaints(root, names))

    def test_links_that_lead_nowhere_are_found(self):
        for link in ("gone.md", "../gone", "other.md#gone", "#gone", ""):
            text = f"# Page\n\nSee [it]({link}) there.\n"
            found = self.complaints(docs__page=text, docs__other="# Other\n\n## Here\n")
            self.assertEqual(len(found), 1, link)
            self.assertIn(f"docs/page.md:3: ({link})", found[0])

    def test_a_link_in_a_list_of_a_line_that_goes_on_is_found(self):
        self.assertEqual(len(self.complaints(docs__page="- a [b\n  c](gone.md)\n")), 1)

    def test_right_links_and_those_in_code_pass(self):
        text = (
            "# The page: `code`, [a link](other.md) & more\n"
            "[a](#the-page-code-a-link--more) [b](other.md#here-1) [c](../docs)\n"
            "[d](https://example.org/gone.md) `[e](gone.md)`\n"
            "```sh\n# [f](gone.md)\n```\n"
        )
        other = "## Here\n```sh\n# Not a heading\n```\n## Here\n"
        self.assertEqual(self.complaints(docs__page=text, docs__other=other), [])

    def test_a_page_that_the_index_lacks_is_found(self):
        found = self.complaints(docs__README="# Index\n", docs__page="# Page\n")
        self.assertEqual(len(found), 1)
        self.assertIn("has no link to page.md", found[0])
        self.assertEqual(self.complaints(docs__README="[a](page.md#page)", docs__page="# Page"), [])


if __name__ == "__main__":
    unittest.main()

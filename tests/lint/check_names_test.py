# SPDX-License-Identifier: Apache-2.0
"""The check of names finds what it is there to find."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_names  # noqa: E402


class CheckNames(unittest.TestCase):
    def complaints(self, **files):
        """What is said about files of these texts: room__name='...'."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                room, file = name.split("__")
                (root / room).mkdir(exist_ok=True)
                (root / room / f"{file}.h").write_text(text)
            return list(check_names.complaints(root))

    def test_two_types_of_one_name_are_found(self):
        one = "namespace tessera {\nclass Rows final : public Base {};\n}\n"
        other = "namespace tessera {\nstruct Rows {\n  int n;\n};\n}\n"
        for room in ("sharding", "offload"):
            found = self.complaints(sharding__a=one, **{f"{room}__b": other})
            self.assertEqual(len(found), 1)
            self.assertIn("tessera::Rows is also defined in", found[0])

    def test_two_constants_of_one_name_are_found(self):
        text = "namespace tessera {\ninline constexpr int kRows = 1;\n}\n"
        self.assertEqual(len(self.complaints(engine__a=text, runtime__b=text)), 1)

    def test_what_is_not_one_name_passes(self):
        texts = (
            "namespace tessera {\nclass Rows;\n}\n",
            "namespace tessera::rows {\nstruct Rows {};\n}\n",
            "namespace tessera {\nnamespace {\nstruct Rows {};\n}\n}\n",
            "namespace tessera {\nstruct Other {\n  struct Rows {};\n};\n}\n",
            "namespace tessera {\nstruct Other::Rows {};\n}\n",
            "namespace tessera {\n// struct Rows {};\n}\n",
            "namespace tessera {\nstruct Rows {};\n}\n",
        )
        files = {f"engine__f{i}": text for i, text in enumerate(texts)}
        self.assertEqual(self.complaints(**files), [])

    def test_a_name_outside_its_room_is_found(self):
        text = "namespace tessera {\nstruct Gpt {};\n}\n"
        found = self.complaints(zoo__a=text)
        self.assertEqual(len(found), 1)
        self.assertIn("is not in namespace tessera::zoo", found[0])


if __name__ == "__main__":
    unittest.main()

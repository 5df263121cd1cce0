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
    def complaints(self, public=(), **files):
        """What is said about files of these texts: room__name='...'."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            listed = root / check_names.PUBLIC_HEADERS
            listed.parent.mkdir(parents=True)
            listed.write_text("\n".join(public))
            for name, text in files.items():
                room, file = name.split("__")
                (root / room).mkdir(exist_ok=True)
                (root / room / f"{file}.h").write_text(text)
            return list(check_names.complaints(root))

    def test_two_types_of_one_name_are_found(self):
        one = "namespace tessera::sharding {\nclass Rows final : public Base {};\n}\n"
        other = "namespace tessera::sharding {\nstruct Rows {\n  int n;\n};\n}\n"
        found = self.complaints(sharding__a=one, sharding__b=other)
        self.assertEqual(len(found), 1)
        self.assertIn("tessera::sharding::Rows is also defined in", found[0])

    def test_two_public_types_of_one_name_are_found(self):
        text = "namespace tessera {\nclass Rows {};\n}\n"
        found = self.complaints(
            public=("sharding/a.h", "offload/b.h"), sharding__a=text, offload__b=text
        )
        self.assertEqual(len(found), 1)
        self.assertIn("tessera::Rows is also defined in", found[0])

    def test_two_constants_of_one_name_are_found(self):
        text = "namespace tessera::engine {\ninline constexpr int kRows = 1;\n}\n"
        self.assertEqual(len(self.complaints(engine__a=text, engine__b=text)), 1)

    def test_names_to_avoid_are_found(self):
        text = "namespace tessera::engine {\nint rows(int whole);\nclass FlatRun;\n}\n"
        found = self.complaints(engine__a=text)
        self.assertEqual(len(found), 2)
        self.assertIn("engine/a.h:2: whole is a name to avoid; full", found[0])
        self.assertIn("engine/a.h:3: FlatRun", found[1])

    def test_names_that_begin_as_those_to_avoid_are_found(self):
        text = (
            "namespace tessera::engine {\nint own_rows();\n"
            "int rows(int own, int whole_rows, int whole_word, int grown_rows);\n"
            "int rows(std::vector<int> places, int unowned);\n}\n"
        )
        found = self.complaints(engine__a=text)
        self.assertEqual(len(found), 4, found)
        self.assertIn("engine/a.h:2: own_rows is a name to avoid; local_ or self_", found[0])
        self.assertIn("engine/a.h:3: own is", found[1])
        self.assertIn("engine/a.h:3: whole_rows is a name to avoid; full_", found[2])
        self.assertIn("engine/a.h:4: places is", found[3])

    def test_names_to_avoid_pass_in_texts_and_other_names(self):
        text = (
            "namespace tessera::engine {\n// The whole of it.\n"
            'const char* text = "how what whole";\nint whole_word(int somehow);\n'
            "const char* of(const Error& error) { return error.what(); }\n}\n"
        )
        self.assertEqual(self.complaints(engine__a=text), [])

    def test_what_is_not_one_name_passes(self):
        texts = (
            "namespace tessera::engine {\nclass Rows;\n}\n",
            "namespace tessera::engine::rows {\nstruct Rows {};\n}\n",
            "namespace tessera::engine {\nnamespace {\nstruct Rows {};\n}\n}\n",
            "namespace tessera::engine {\nstruct Other {\n  struct Rows {};\n};\n}\n",
            "namespace tessera::engine {\nstruct Other::Rows {};\n}\n",
            "namespace tessera::engine {\n// struct Rows {};\n}\n",
            "namespace tessera::engine {\nstruct Rows {};\n}\n",
        )
        files = {f"engine__f{i}": text for i, text in enumerate(texts)}
        same = "namespace tessera::zoo {\nstruct Rows {};\n}\n"
        self.assertEqual(self.complaints(zoo__a=same, **files), [])

    def test_a_name_outside_its_room_is_found(self):
        text = "namespace tessera {\nstruct Gpt {};\n}\n"
        found = self.complaints(zoo__a=text)
        self.assertEqual(len(found), 1)
        self.assertIn("is not in namespace tessera::zoo", found[0])

    def test_a_room_name_in_a_public_header_is_found(self):
        text = "namespace tessera::engine {\nstruct Plan {};\n}\n"
        found = self.complaints(public=("engine/a.h",), engine__a=text)
        self.assertEqual(len(found), 1)
        self.assertIn("is not in namespace tessera", found[0])

    def test_a_listed_header_that_is_not_there_is_found(self):
        found = self.complaints(public=("engine/gone.h",))
        self.assertEqual(len(found), 1)
        self.assertIn("there is no engine/gone.h", found[0])


if __name__ == "__main__":
    unittest.main()

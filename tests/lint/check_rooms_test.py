# SPDX-License-Identifier: Apache-2.0
"""The check of the rooms finds what it is there to find."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_rooms  # noqa: E402


class CheckRooms(unittest.TestCase):
    def complaints(self, room, include):
        """What is said about a file in `room` with one include line."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in check_rooms.MAY_INCLUDE:
                (root / name).mkdir()
                (root / name / "a.h").write_text("#pragma once\n")
            (root / room / "b.cpp").write_text(f"#include {include}\n")
            return check_rooms.check_tree(root)

    def test_downward_includes_pass(self):
        downward = (
            ("zoo", "engine"),
            ("zoo", "runtime"),
            ("engine", "pipeline"),
            ("sharding", "runtime"),
            ("tasks", "zoo"),
            ("tasks", "planner"),
            ("planner", "engine"),
            ("zoo", "text"),
            ("engine", "engine"),
        )
        for room, target in downward:
            include = f'"tessera/{target}/a.h"'
            self.assertEqual(self.complaints(room, include), [])

    def folder_complaints(self, file, include):
        """What is said about an include between files of sharding."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "sharding"
            for name in (*check_rooms.FOLDERS["sharding"], "attic", "."):
                (root / name).mkdir(parents=True, exist_ok=True)
                (root / name / "a.h").write_text("#pragma once\n")
            (root / file).write_text(f'#include "tessera/sharding/{include}"\n')
            return check_rooms.check_tree(root.parent)

    def test_folders_include_those_before_them(self):
        for include in ("tensors/a.h", "pages/a.h"):
            self.assertEqual(self.folder_complaints("pages/b.cpp", include), [])

    def test_folders_that_include_later_ones_are_named(self):
        (complaint,) = self.folder_complaints("pages/b.cpp", "paging/a.h")
        self.assertIn("sharding/pages/b.cpp:1: ", complaint)
        self.assertIn("sharding/pages must not include sharding/paging", complaint)

    def test_folders_without_a_place_are_named(self):
        for file, include in (
            ("pages/b.cpp", "attic/a.h"),
            ("attic/b.cpp", "pages/a.h"),
        ):
            (complaint,) = self.folder_complaints(file, include)
            self.assertIn("sharding/attic is not one of sharding's folders", complaint)
        (complaint,) = self.folder_complaints("pages/b.cpp", "a.h")
        self.assertIn("sharding itself is not one of", complaint)

    def test_upward_and_sideways_includes_are_named(self):
        wrong = (
            ("runtime", "sharding"),
            ("sharding", "offload"),
            ("offload", "pipeline"),
            ("pipeline", "engine"),
            ("engine", "zoo"),
            ("text", "zoo"),
            ("zoo", "tasks"),
            ("zoo", "planner"),
            ("planner", "tasks"),
        )
        for room, target in wrong:
            for include in (f'"tessera/{target}/a.h"', f"<tessera/{target}/a.h>"):
                (complaint,) = self.complaints(room, include)
                self.assertIn(f"{room}/b.cpp:1: ", complaint)
                self.assertIn(f"{room} must not include {target}", complaint)

    def test_relative_paths_are_named(self):
        for include in ('"a.h"', '"../zoo/a.h"', "<../zoo/a.h>"):
            (complaint,) = self.complaints("runtime", include)
            self.assertIn('write it as "tessera/<room>/.../a.h"', complaint)

    def test_missing_files_and_rooms_are_named(self):
        (complaint,) = self.complaints("zoo", '"tessera/engine/gone.h"')
        self.assertIn("no such file", complaint)
        (complaint,) = self.complaints("zoo", '"tessera/attic/a.h"')
        self.assertIn("no such room", complaint)

    def test_system_headers_pass(self):
        self.assertEqual(self.complaints("runtime", "<torch/torch.h>"), [])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/drivers/mutations.py says without a build."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/drivers"))

import mutations  # noqa: E402


class Mutations(unittest.TestCase):
    def run_script(self, *arguments):
        """The script with a build that is not there, nor is it made."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder) / "build"
            done = subprocess.run(
                [
                    sys.executable,
                    "-B",
                    ROOT / "tests/drivers/mutations.py",
                    f"--build={build}",
                    *arguments,
                ],
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertFalse(build.exists())
        return done

    def test_lists_build_nothing(self):
        for arguments, listed in (
            (["--list"], mutations.MUTATIONS),
            (["--waits", "--list"], mutations.WAITS),
        ):
            done = self.run_script(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = done.stdout.splitlines()
            self.assertEqual(len(lines), len(listed))
            for line, one in zip(lines, listed):
                self.assertTrue(line.startswith(one.name), line)

    def test_all_apply(self):
        for mutation in mutations.MUTATIONS:
            with self.subTest(mutation.name):
                self.assertNotEqual(
                    mutations.mutated(mutation),
                    (ROOT / mutation.file).read_text(),
                )
        for wait in mutations.WAITS:
            with self.subTest(wait.name):
                mutations.switchable([wait])

    def test_a_list_is_of_those_that_are_named(self):
        done = self.run_script("--waits", "--list", "--only", "staging_buffers")
        self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_an_unknown_name_is_an_error_with_the_nearest(self):
        for arguments, near in (
            (["--only", "prefeches"], "prefetches one group late"),
            (["--list", "--only", "clips", "prefeches"], "prefetches one group"),
            (["--waits", "--only", "speculative_stat.cpp"], "speculative_state.cpp"),
        ):
            done = self.run_script(*arguments)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"'{arguments[-1]}'", done.stderr)
            self.assertIn(near, done.stderr.splitlines()[1])

    def test_every_option_has_a_help_text(self):
        told = self.run_script("--help").stdout.partition("options:")[2]
        for option in ("--build", "--only", "--list", "--waits"):
            # A text is on the line of its option, or on the one after.
            self.assertRegex(told, rf"\n  {option}\b[^\n]*?(\n {{8}}| ) +[a-z]")


if __name__ == "__main__":
    unittest.main()

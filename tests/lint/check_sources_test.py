#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of scripts/check_sources.py about the text of a file."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_sources  # noqa: E402

LICENCE = f"// {check_sources.SPDX}\n"


def complaints(name, text):
    return list(check_sources.check_text(pathlib.Path(name), text))


class Sources(unittest.TestCase):
    def test_what_is_right_is_accepted(self):
        self.assertEqual(complaints("runtime/a.cpp", LICENCE + "int a;\n"), [])
        self.assertEqual(complaints("runtime/a.h", LICENCE + "#pragma once\n"), [])

    def test_each_rule_is_checked(self):
        for name, text, found in (
                ("runtime/a.cpp", "int a;\n", "a.cpp:1: the first lines lack"),
                ("runtime/a.h", LICENCE + "int a;\n", "'#pragma once'"),
                ("runtime/a.h", LICENCE + "#pragma once\nusing namespace b;\n",
                 "a.h:3: no 'using namespace'"),
                ("runtime/a.cpp", LICENCE + "int a; \n", "a.cpp:2: trailing space"),
                ("runtime/a.cpp", LICENCE + "int a;", "no newline at the end")):
            self.assertEqual(len(complaints(name, text)), 1, text)
            self.assertIn(found, complaints(name, text)[0])

    def test_a_test_of_gpus_does_not_ask_libtorch(self):
        for name in ("tests/runtime/kernels/update_gpu_test.cpp",
                     "tests/engine/device_training.h",
                     "tests/engine/activation_offload_cases.h"):
            for line in ("if (!torch::cuda::is_available()) {",
                         "if (!at::globalContext().hasCUDA()) {",
                         "at::Device device(at::kCUDA, 0);"):
                if name.endswith(".h") and "kCUDA" in line:
                    continue  # a plan may be for CUDA
                head = LICENCE + "#pragma once\n" * name.endswith(".h")
                found = complaints(name, head + line + "\n")
                self.assertEqual(len(found), 1, (name, line))
                self.assertIn("cuda_device()", found[0])
        self.assertEqual(
            complaints("runtime/a.cpp", LICENCE + "device(at::kCUDA);\n"), [])


if __name__ == "__main__":
    unittest.main()

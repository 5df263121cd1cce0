#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_phases.py with programs that only pretend."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_phases  # noqa: E402


def job(name, script, **options):
    return gpu_phases.Job(name, ["sh", "-c", script], **options)


class Phases(unittest.TestCase):
    def run_jobs(self, *jobs, workers=2):
        with tempfile.TemporaryDirectory() as folder:
            logs = pathlib.Path(folder)
            summary = {}
            gpu_phases.run_phase(
                gpu_phases.Phase("tried", list(jobs), workers), logs, {"PATH": "/usr/bin:/bin"}, summary)
            self.assertEqual(json.loads((logs / "summary.json").read_text()), summary)
            for one in jobs:
                self.assertTrue((logs / "tried" / f"{one.name}.log").exists())
        return summary["tried"]

    def test_a_failure_keeps_the_others_results(self):
        found = self.run_jobs(
            job("bad", "echo before; echo 'x.cpp:3: Failure'; exit 3"),
            job("good", """echo '{"step_ms": 5}'"""))
        self.assertEqual((found["bad"]["passed"], found["bad"]["code"]), (False, 3))
        self.assertIn("x.cpp:3: Failure", found["bad"]["failure"])
        self.assertTrue(found["good"]["passed"])
        self.assertEqual(found["good"]["results"], [{"step_ms": 5}])

    def test_a_program_is_stopped_at_its_limit(self):
        found = self.run_jobs(job("slow", "exec sleep 30", seconds=1))
        self.assertFalse(found["slow"]["passed"])
        self.assertLess(found["slow"]["seconds"], 10)

    def test_what_a_stopped_program_has_started_ends_too(self):
        found = self.run_jobs(job(
            "ranks", """sleep 30 & echo "{\\"pid\\": $!}"; wait""", seconds=1))
        state = pathlib.Path(f"/proc/{found['ranks']['results'][0]['pid']}/stat")
        ends = time.monotonic() + 10
        while state.exists() and state.read_text().split(") ")[-1][0] not in "ZX":
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.01)

    def test_a_pack_says_what_it_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for name in ("gpu_tests.sh", "gpu_phases.py"):
                shutil.copy(ROOT / "scripts" / name, folder)
            with tarfile.open(folder / "files.tar.xz", "w:xz"):
                pass
            done = subprocess.run(
                [folder / "gpu_tests.sh", "dry-run", "profile"], cwd=folder,
                env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True)
            self.assertIn("missing: 1b_profile", done.stderr)
            self.assertEqual(done.returncode, 1)

    def test_a_skipped_test_is_a_failure(self):
        found = self.run_jobs(job("skips", "echo 'no CUDA device'"))
        self.assertFalse(found["skips"]["passed"])

    def test_environments_reach_programs(self):
        found = self.run_jobs(job("reads", 'test "$GIVEN" = 1', environment={"GIVEN": "1"}))
        self.assertTrue(found["reads"]["passed"])

    def test_every_phase_ends_in_time(self):
        with tempfile.TemporaryDirectory() as folder:
            kit = gpu_phases.Kit(pathlib.Path(folder), pathlib.Path(folder))
            names = [phase.name for phase in kit.phases()]
            self.assertEqual(len(names), len(set(names)))
            for phase in kit.phases():
                self.assertEqual(len({one.name for one in phase.jobs}), len(phase.jobs), phase.name)
                for one in phase.jobs:
                    self.assertLessEqual(one.seconds, gpu_phases.PHASE_SECONDS)

    def test_a_dry_run_sees_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            kit = gpu_phases.Kit(folder, folder)
            phase = next(one for one in kit.phases() if one.name == "profile")
            self.assertEqual(
                gpu_phases.missing_from(folder, phase), [f"1b_profile: {folder}/bin/train_gpt2"])
            (folder / "bin").mkdir()
            (folder / "bin/train_gpt2").touch()
            self.assertEqual(gpu_phases.missing_from(folder, phase), [])


if __name__ == "__main__":
    unittest.main()

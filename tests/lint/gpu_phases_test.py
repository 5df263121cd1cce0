#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_phases.py with programs that only pretend."""
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

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
                gpu_phases.Phase("tried", list(jobs), workers), logs,
                {"PATH": "/usr/bin:/bin"}, summary, gpu_phases.Programs())
            self.assertEqual(json.loads((logs / "summary.json").read_text()), summary)
            for one in jobs:
                self.assertTrue((logs / "tried" / f"{one.name}.log").exists())
        return summary["tried"]

    def test_a_failure_keeps_the_others_results(self):
        found = self.run_jobs(
            job("bad", "echo before; echo 'x.cpp:3: Failure'; exit 3"),
            job("good", """echo '{"step_ms": 5}'"""))
        self.assertEqual((found["bad"]["outcome"], found["bad"]["code"]), ("failed", 3))
        self.assertIn("x.cpp:3: Failure", found["bad"]["failure"])
        self.assertEqual(found["good"]["outcome"], "ok")
        self.assertEqual(found["good"]["results"], [{"step_ms": 5}])

    def test_a_program_is_stopped_at_its_limit(self):
        found = self.run_jobs(job("slow", "exec sleep 30", seconds=1))
        self.assertEqual(found["slow"]["outcome"], "failed")
        self.assertLess(found["slow"]["seconds"], 10)

    def test_what_a_stopped_program_has_started_ends_too(self):
        found = self.run_jobs(job(
            "ranks", """sleep 30 & echo "{\\"pid\\": $!}"; wait""", seconds=1))
        self.assert_ends(found["ranks"]["results"][0]["pid"])

    def assert_ends(self, pid):
        state = pathlib.Path(f"/proc/{pid}/stat")
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
        self.assertEqual(found["skips"]["outcome"], "failed")
        self.assertIn("no CUDA device", found["skips"]["code"])

    def test_a_missing_module_is_no_success(self):
        found = self.run_jobs(
            job("peer", "exit 0", module="no_such_module", is_information=True))["peer"]
        self.assertEqual(found["outcome"], "skipped")
        self.assertIn("no_such_module", found["code"])
        self.assertEqual(
            self.run_jobs(job("peer", "exit 0", module="json"))["peer"]["outcome"], "ok")

    def test_the_failure_of_a_peer_is_no_success(self):
        found = self.run_jobs(job("peer", "exit 3", is_information=True))
        self.assertEqual(found["peer"]["outcome"], "noted")

    def test_a_cap_needs_the_memory_of_a_device(self):
        with tempfile.TemporaryDirectory() as folder:
            command = pathlib.Path(folder) / "nvidia-smi"
            command.write_text("#!/bin/sh\necho 22528\n")
            command.chmod(0o755)
            shown = 'echo "$PYTORCH_CUDA_ALLOC_CONF" | grep -q ":0.5000$"'
            for path, outcome in ((folder, "ok"), (f"{folder}/none", "failed")):
                with mock.patch.dict(os.environ, PATH=path):
                    found = self.run_jobs(job("capped", shown, is_capped=True))["capped"]
                self.assertEqual(found["outcome"], outcome, found)
            self.assertIn("nvidia-smi", found["code"])

    def test_environments_reach_programs(self):
        found = self.run_jobs(job("reads", 'test "$GIVEN" = 1', environment={"GIVEN": "1"}))
        self.assertEqual(found["reads"]["outcome"], "ok")

    def test_the_command_is_no_output(self):
        found = self.run_jobs(job("lines", "true\n: no CUDA device"))
        self.assertEqual(found["lines"]["outcome"], "ok")

    def test_nothing_starts_after_a_signal(self):
        programs = gpu_phases.Programs()
        programs.signal = signal.SIGTERM
        with tempfile.TemporaryFile("w") as output:
            # It came while the import ran, or the program began.
            for module in ("", "json"):
                slow = job("slow", "exec sleep 30", module=module)
                self.assertEqual(
                    gpu_phases.start_job(
                        slow, output, {**os.environ}, time.monotonic() + 30, programs),
                    ("stopped by SIGTERM", False))

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
            needed = (folder / "bin/train_gpt2", folder / "lib/libtessera_cuda.so")
            self.assertEqual(
                gpu_phases.missing_from(folder, phase),
                [f"1b_profile: {path}" for path in needed])
            for path in needed:
                path.parent.mkdir()
                path.touch()
            self.assertEqual(gpu_phases.missing_from(folder, phase), [])

    def test_a_dry_run_sees_what_programs_read(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            packed = folder / "tests/zoo/fixtures/models"
            (packed / "gpt2").mkdir(parents=True)
            (packed / "packed.txt").write_text("gpt2\n")
            (packed / "gpt2/config.json").touch()
            kit = gpu_phases.Kit(folder, folder / "logs")
            missing = {
                phase.name: "\n".join(gpu_phases.missing_from(folder, phase))
                for phase in kit.phases()}
            for name, file in (
                    ("zoo", "models/gpt2/model.safetensors"),
                    ("zoo", "models/gpt2/expected.safetensors"),
                    ("speed", "peers/gpt2_cuda.py"),
                    ("engine", "lib/libtessera_cuda.so"),
                    ("bert_large", "bert_large/train.safetensors")):
                self.assertIn(file, missing[name])
            self.assertNotIn("gpt2/config.json", missing["zoo"])
            kit.prepare()
            phase = next(one for one in kit.phases() if one.name == "bert_large")
            self.assertNotIn(
                "safetensors", "\n".join(gpu_phases.missing_from(folder, phase)))
            (packed / "packed.txt").unlink()
            phase = next(one for one in kit.phases() if one.name == "zoo")
            self.assertIn(
                "packed.txt", "\n".join(gpu_phases.missing_from(folder, phase)))


# Its first program ends, and the second does not.
TRAINER = r"""#!/bin/sh
case "$*" in
  *placement.optimizer*) sleep 60 & echo "{\"pid\": $!}"; wait ;;
  *) echo '{"step_ms": 5}' ;;
esac
"""


class Packs(unittest.TestCase):
    """A folder as it is unpacked, with a torch that only has a version."""

    assert_ends = Phases.assert_ends

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.logs = self.folder / "logs"
        self.write("python/torch/__init__.py", "__version__ = '2.11.0+cu130'\n")
        self.write("pack/bin/train_gpt2", TRAINER)
        self.write("pack/lib/libtessera_cuda.so", "")
        self.write("path/ldd", "#!/bin/sh\nexit 0\n")
        self.environment = {
            **os.environ, "PYTHONPATH": str(self.folder / "python"),
            "PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"}
        # Even where this test is in the background of a shell.
        wants_signals = [
            sys.executable, "-B", "-c",
            "import os, signal, sys\n"
            "for number in (1, 2, 15): signal.signal(number, signal.SIG_DFL)\n"
            "os.execvp(sys.argv[1], sys.argv[1:])"]
        self.script = [
            sys.executable, "-B", str(ROOT / "scripts/gpu_phases.py"),
            str(self.folder / "pack"), "--logs", str(self.logs)]
        self.command = [*wants_signals, *self.script]

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_pack(self, *arguments):
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, timeout=60,
            capture_output=True, text=True)

    def summary(self):
        return json.loads((self.logs / "summary.json").read_text())

    def started(self):
        """The process that the program which does not end has started."""
        log = self.logs / "offload/1b_host_auto.log"
        ends = time.monotonic() + 30
        while not log.exists() or "}\n" not in log.read_text():
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.01)
        return json.loads(log.read_text().splitlines()[-1])["pid"]

    def check_stopped(self, number):
        phase = self.summary()["offload"]
        self.assertEqual(list(phase), ["1b_device", "1b_host_auto"])
        self.assertEqual(phase["1b_device"]["outcome"], "ok")
        self.assertEqual(
            (phase["1b_host_auto"]["outcome"], phase["1b_host_auto"]["code"]),
            ("failed", f"stopped by {number.name}"))

    def test_a_signal_ends_the_programs_that_run(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            shutil.rmtree(self.logs, ignore_errors=True)
            with subprocess.Popen(
                    [*self.command, "offload", "profile"], env=self.environment,
                    stdout=subprocess.PIPE, text=True) as program:
                try:
                    pid = self.started()
                    program.send_signal(number)
                    output, _ = program.communicate(timeout=20)
                finally:
                    program.kill()
            self.assertEqual(program.returncode, 128 + number)
            self.assertIn(f"stopped by {number.name}", output.splitlines()[-1])
            self.assert_ends(pid)
            self.check_stopped(number)
            self.assertNotIn("profile", output)
            self.assertNotIn("profile", self.summary())

    def test_a_signal_that_is_ignored_ends_nothing(self):
        with subprocess.Popen(
                ["nohup", *self.script, "offload"], env=self.environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            try:
                self.started()
                program.send_signal(signal.SIGHUP)
                time.sleep(0.2)
                program.send_signal(signal.SIGTERM)
                program.wait(20)
            finally:
                program.terminate()
        self.assertEqual(program.returncode, 128 + signal.SIGTERM)
        self.check_stopped(signal.SIGTERM)

    def test_a_terminal_that_hangs_up_ends_the_programs_that_run(self):
        runner, terminal = pty.fork()
        if runner == 0:
            os.execve(sys.executable, [*self.command, "offload"], self.environment)
        try:
            pid = self.started()
        finally:
            os.close(terminal)
            _, status = os.waitpid(runner, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 128 + signal.SIGHUP)
        self.assert_ends(pid)
        self.check_stopped(signal.SIGHUP)

    def test_a_peer_that_is_not_installed_is_skipped(self):
        self.write("pack/site/deepspeed/__init__.py", "raise ImportError('not here')\n")
        self.write("pack/peers/compare_cuda.py", "")
        done = self.run_pack("deepspeed")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout, "(?m)^skipped 1b_deepspeed: deepspeed cannot be imported: .*not here")
        self.assertIn("skipped: deepspeed/1b_deepspeed", done.stdout.splitlines()[-1])
        self.assertEqual(
            {one["outcome"] for one in self.summary()["deepspeed"].values()}, {"skipped"})
        self.assertIn("would be skipped", self.run_pack("deepspeed", "--dry-run").stdout)

    def test_an_environment_without_a_device_fails(self):
        torch = "python/torch/__init__.py"
        text = "__version__ = '2.11.0'\nclass cuda:\n  is_available = lambda: %s\n"
        for smi, available, failed in (
                ("echo 'GPU 0: one'", True, []),
                ("echo 'No devices were found'", False, ["device", "device_of_torch"]),
                ("echo 'no driver'; exit 9", True, ["device"]),
                ("echo 'GPU 0: one'", False, ["device_of_torch"])):
            self.write("path/nvidia-smi", f"#!/bin/sh\n{smi}\n")
            self.write(torch, text % available)
            done = self.run_pack("environment")
            found = self.summary()["environment"]
            self.assertEqual(
                [name for name in found if found[name]["outcome"] == "failed"], failed)
            self.assertEqual(done.returncode, 1 if failed else 0)
            for name in failed:
                self.assertRegex(
                    "\n".join(found[name]["failure"]), "Error: .* finds no device")
            if failed == ["device"]:
                self.assertIn("| no driver", done.stdout)

    def test_a_dry_run_sees_libraries_that_are_not_found(self):
        self.assertEqual(self.run_pack("profile", "--dry-run").returncode, 0)
        self.write("path/ldd", """#!/bin/sh
case $1 in
  *train_gpt2) echo "  libneeded.so.3 => not found"; echo "  libc.so.6 => /lib/libc" ;;
  *) echo "not a dynamic executable" >&2; exit 1 ;;
esac
""")
        done = self.run_pack("profile", "--dry-run")
        self.assertEqual(done.returncode, 1)
        self.assertIn("libneeded.so.3 => not found, for train_gpt2\n", done.stderr)
        self.assertIn("not a dynamic executable, for libtessera_cuda.so\n", done.stderr)
        self.assertEqual(done.stderr.count("missing:"), 2, done.stderr)

    def test_a_dry_run_sees_that_torch_is_missing(self):
        for text, reason in (
                ("raise ImportError('not here')", "not here"),
                ("raise OSError('libtorch.so')", "libtorch.so"),
                ("__version__ = '2.10.0'", "torch is 2.10.0")):
            self.write("python/torch/__init__.py", text + "\n")
            done = self.run_pack("profile", "--dry-run")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"missing: .*{reason}")
            done = self.run_pack("profile")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"gpu_phases: .*{reason}")
            self.assertNotIn("Traceback", done.stderr)

    def test_a_dry_run_starts_no_program_without_a_device(self):
        self.write("pack/bin/tessera-run", "")
        done = self.run_pack("bert_large", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("(within 11 GiB of the device)", done.stdout)
        self.assertNotIn("per_process_memory_fraction", done.stdout)


if __name__ == "__main__":
    unittest.main()

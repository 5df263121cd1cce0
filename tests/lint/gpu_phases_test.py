#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_phases.py and gpu_tests.sh with programs that only pretend."""
import contextlib
import io
import json
import os
import pathlib
import pty
import random
import re
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
from gpu_kit import jobs, machine, profile, report, running  # noqa: E402


def job(name, script, **options):
    return jobs.Job(name, "sh", ["-c", script], **options)


def never():
    return time.monotonic() + 1000


class Phases(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        output = contextlib.redirect_stdout(io.StringIO())
        output.__enter__()
        self.addCleanup(output.__exit__, None, None, None)
        self.runner = running.Runner(
            self.folder, self.logs, {"PATH": "/usr/bin:/bin"},
            report.Summary(self.logs / "summary.json"), running.Programs())

    def run_jobs(self, *some, workers=2, ends=None):
        self.runner.run_phase(jobs.Phase("tried", list(some), workers), ends or never())
        found = self.runner.summary.phases
        self.assertEqual(json.loads((self.logs / "summary.json").read_text()), found)
        for one in some:
            self.assertEqual((self.logs / "tried" / f"{one.name}.log").exists(),
                             found["tried"][one.name]["outcome"] != "not started")
        return found["tried"]

    def test_a_failure_keeps_the_others_results(self):
        found = self.run_jobs(
            job("bad", "echo before; echo 'x.cpp:3: Failure'; exit 3"),
            job("good", """echo '{"step_ms": 5}'; echo '{"cut'"""))
        self.assertEqual((found["bad"]["outcome"], found["bad"]["code"]), ("failed", 3))
        self.assertIn("x.cpp:3: Failure", found["bad"]["failure"])
        self.assertEqual(found["good"]["outcome"], "ok")
        self.assertEqual(found["good"]["results"], [{"step_ms": 5}])

    def test_a_program_is_stopped_at_its_limit(self):
        found = self.run_jobs(job("slow", "exec sleep 30", limit=1))
        self.assertEqual(found["slow"]["outcome"], "failed")
        self.assertLess(found["slow"]["seconds"], 10)

    def test_what_a_stopped_program_has_started_ends_too(self):
        found = self.run_jobs(job(
            "ranks", r"""sleep 30 & echo "{\"pid\": $!}"; wait""", limit=1))
        self.assert_ends(found["ranks"]["results"][0]["pid"])

    def assert_ends(self, pid):
        state = pathlib.Path(f"/proc/{pid}/stat")
        ends = time.monotonic() + 10
        while state.exists() and state.read_text().split(") ")[-1][0] not in "ZX":
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.01)

    def test_a_job_that_would_end_late_is_not_started(self):
        found = self.run_jobs(
            job("long", "true", estimate=100), job("short", "true", estimate=1),
            ends=time.monotonic() + 50)
        self.assertEqual(found["long"]["outcome"], "not started")
        self.assertRegex(found["long"]["code"], "takes 100 s, [45][0-9] s are left")
        self.assertEqual(found["short"]["outcome"], "ok")

    def test_a_job_that_is_late_ends_with_the_time(self):
        started = time.monotonic()
        found = self.run_jobs(job("late", "exec sleep 30", estimate=0.1), ends=started + 1.5)
        self.assertEqual(found["late"]["outcome"], "failed")
        self.assertLess(time.monotonic(), started + 10)

    def test_a_job_that_needs_more_memory_is_not_started(self):
        with mock.patch.object(machine, "device_gib", lambda: 79):
            found = self.run_jobs(
                job("device", "true", device_gib=120), job("fits", "true", device_gib=79),
                job("host", "true", host_gib=1 << 20))
        self.assertEqual(found["device"]["outcome"], "not started")
        self.assertIn("needs 120 GiB of the device's memory, there are 79",
                      found["device"]["code"])
        self.assertIn("of the host's memory", found["host"]["code"])
        self.assertEqual(found["fits"]["outcome"], "ok")

    def test_a_gate_that_fails_ends_all(self):
        gate = jobs.Phase("tried", [
            job("bad", "echo 'x.cpp:3: Failure'; echo apart; exit 3"),
            job("hangs", "exec sleep 60"), job("waits", "true")], 2, is_gate=True)
        after = jobs.Phase("after", [job("next", "true")])
        started = time.monotonic()
        with mock.patch.object(running, "GRACE_SECONDS", 0.2):
            stopped = gpu_phases.run_phases(self.runner, [gate, after], None)
        self.assertLess(time.monotonic(), started + 10)
        self.assertIn("the gate tried failed", stopped)
        self.assertIn("tried/bad: 3: x.cpp:3: Failure apart", stopped)
        found = self.runner.summary.phases
        self.assertEqual(found["tried"]["hangs"]["code"],
                         "stopped, because tried/bad failed")
        self.assertNotIn("after", found)

    def test_a_gate_that_passes_ends_nothing(self):
        gate = jobs.Phase("tried", [
            job("good", "true"), job("told", "exit 1", is_information=True)], is_gate=True)
        after = jobs.Phase("after", [job("bad", "exit 1"), job("next", "true")])
        self.assertEqual(gpu_phases.run_phases(self.runner, [gate, after, gate], None), "")
        self.assertEqual(self.runner.summary.phases["after"]["next"]["outcome"], "ok")

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
        command = self.folder / "nvidia-smi"
        command.write_text("#!/bin/sh\necho 22528\n")
        command.chmod(0o755)
        shown = 'echo "$PYTORCH_CUDA_ALLOC_CONF" | grep -q ":0.5000$"'
        for path, outcome in ((self.folder, "ok"), (self.folder / "none", "failed")):
            with mock.patch.dict(os.environ, PATH=str(path)):
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
        self.runner.programs.end_by(signal.SIGTERM, None)
        with tempfile.TemporaryFile("w") as output:
            # It came while the import ran, or the program began.
            for module in ("", "json"):
                slow = job("slow", "exec sleep 30", module=module)
                self.assertEqual(
                    self.runner.start(slow, output, never()),
                    ("stopped by SIGTERM", False))


class Reports(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.logs = pathlib.Path(kept.name) / "logs"
        (self.logs / "phase").mkdir(parents=True)
        (self.logs / "work").mkdir()
        self.target = pathlib.Path(kept.name) / "logs.tar.xz"

    def archive(self, ends=None):
        """@return the names of what was left out; {name: bytes} of the rest."""
        left_out = report.archive(self.logs, self.target, ends or never())
        with tarfile.open(self.target) as packed:
            return left_out, {
                name: packed.extractfile(name).read() for name in packed.getnames()}

    def test_an_archive_has_logs_and_traces(self):
        (self.logs / "phase/job.log").write_text("said\n")
        (self.logs / "work/trace.json").write_text("[]")
        (self.logs / "work/model.bin").write_text("large")
        self.assertEqual(self.archive(), ([], {
            "phase/job.log": b"said\n", "work/trace.json": b"[]"}))

    def test_an_archive_has_both_ends_of_a_long_log(self):
        text = b"first\n" + b"middle\n" * (1 << 19) + b"last\n"
        (self.logs / "phase/job.log").write_bytes(text)
        _, found = self.archive()
        content = found["phase/job.log"]
        self.assertLess(len(content), 2 * report.LOG_BYTES + 100)
        self.assertTrue(content.startswith(b"first") and content.endswith(b"last\n"))
        self.assertIn(b"bytes left out", content)

    def test_an_archive_is_as_small_as_it_must_be(self):
        noise = random.Random(0).randbytes
        for name, size in (("small", 1000), ("large", 300000), ("larger", 400000)):
            (self.logs / f"phase/{name}.log").write_bytes(noise(size))
        (self.logs / "work/trace.json").write_bytes(noise(200000))
        with mock.patch.object(report, "ARCHIVE_BYTES", 250000), \
                mock.patch.object(report, "TRACE_BYTES", 100000):
            left_out, found = self.archive()
        self.assertLessEqual(self.target.stat().st_size, 250000)
        self.assertEqual(list(found), ["phase/small.log"])
        self.assertEqual(left_out, [
            "work/trace.json", "phase/larger.log", "phase/large.log"])

    def test_a_failure_is_told_by_its_last_line_that_says_something(self):
        self.assertEqual(
            report.error_of({"failure": ["tessera failed:", "there is no device", "", " "]}),
            "there is no device")
        self.assertEqual(report.error_of({"failure": ["", ""]}), "")

    def test_an_archive_ends_in_time(self):
        (self.logs / "phase/job.log").write_text("said\n")
        self.assertEqual(self.archive(time.monotonic() - 1), (["phase/job.log"], {}))

    def test_a_table_has_speed_first_and_no_more_than_is_seen(self):
        summary = report.Summary()
        speed = {"peer": "tessera", "step_ms": 100, "tokens_per_s": 81920,
                 "parameters": 1, "mfu": 0.5, "mfu_formula": "formula",
                 "peak_tflops": 989, "of_matrix_rate": 0.625, "matrix_tflops": 791,
                 "peak_device_mib": 40000, "first_loss": 10.9, "last_loss": 7.25}
        peer = {**speed, "peer": "fsdp2", "step_ms": 120}
        speed["predicted"] = {"device": "h100", "step_ms": 90, "step_in_turn_ms": 95.04}

        def add(phase, name, outcome, code, results=(), failure=()):
            summary.phases.setdefault(phase, {})[name] = {
                "outcome": outcome, "code": code, "results": list(results),
                "failure": list(failure)}

        for i in range(60):
            add("suites", f"bad_{i}", "failed", 1, failure=[
                "[ RUN      ] A.B", f"f.cpp:{i}: Failure", "apart " + "x" * 500])
        add("later", "one", "not started", "takes 9 s, 4 s are left")
        add("later", "two", "not started", "takes 8 s, 4 s are left")
        add("speed", "1b_tessera", "ok", 0, [speed])
        add("speed", "1b_fsdp2", "ok", 0, [peer])
        add("speed", "1b_profile", "ok", 0, [{**speed, "predicted": {
            **speed["predicted"], "operators_ms": {"aten::mm": 80}}}])
        summary.phases["speed"]["1b_profile"]["kernels_ms"] = {"products": 84.26}
        text = report.table(summary, ["head"])
        lines = text.splitlines()
        self.assertLessEqual(len(text), report.TABLE_CHARACTERS)
        self.assertEqual(lines[:2], ["head", "MFU = formula, 989 TFLOP/s"])
        self.assertEqual(
            lines[2], "speed/1b_tessera tessera: 100.0 ms, 81920 tokens/s, "
            "predicted 90.0 to 95.0 ms (h100), MFU 50.0 %, 62.5 % of the 791 TFLOP/s that products of matrices reach here, 40000 MiB, "
            "loss 10.9 to 7.25")
        self.assertTrue(lines[3].endswith("1.20 x Tessera's time"), lines[3])
        self.assertEqual(
            lines[5], "speed/1b_profile kernels, ms a step: products 84.3 (predicted 80.0)")
        self.assertTrue(
            lines[6].startswith("FAILED suites/bad_0: 1: f.cpp:0: Failure apart x"), lines[6])
        self.assertIn("summary.json", lines[-1])
        del summary.phases["suites"]
        self.assertEqual(
            report.table(summary, []).splitlines()[-1],
            "not started later: 4 s are left: one takes 9 s, two takes 8 s")


class Profiles(unittest.TestCase):
    """What kernels took, beside what operators were predicted to take."""

    def test_kernels_and_operators_have_the_same_kinds(self):
        for kind, operator, kernels in [
                ("attention", "aten::_scaled_dot_product_flash_attention_backward", [
                    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
                    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>()",
                    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(P)"]),
                ("products", "aten::addmm", [
                    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
                    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
                    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(P)"]),
                ("products", "aten::mm", []),
                ("optimizer", "tessera::adamw_", [
                    "void tessera::runtime::(anonymous namespace)::update_kernel<A, B>(T)"]),
                ("packed gradients", "tessera::pack_", [
                    "void tessera::runtime::(anonymous namespace)::pack_kernel<A>(T)"]),
                ("gradient norm", "tessera::power_sums", [
                    "void at::native::multi_tensor_apply_kernel<M, LpNormFunctor<float>>",
                    "void at::native::lpnorm_cleanup<float, (NormType)1>(float*)"]),
                ("norms", "aten::native_layer_norm_backward", [
                    "void at::native::vectorized_layer_norm_kernel<bf16, float>(int)",
                    "void tessera::runtime::(anonymous namespace)::norm_kernel<A>(N)",
                    "void tessera::(anonymous namespace)::norm_backward_x_kernel<A>(N)"]),
                ("activation functions", "aten::gelu_backward", [
                    "void at::native::vectorized_elementwise_kernel<4, at::native::"
                    "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)>"]),
                ("all others", "aten::embedding", [
                    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<T>>",
                    "void at::native::indexSelectLargeIndex<T>(T)"])]:
            self.assertEqual(profile.kind_of(operator, 1), kind, operator)
            for kernel in kernels:
                self.assertEqual(profile.kind_of(kernel, 2), kind, kernel)

    def test_a_trace_is_summed_by_kind_and_step(self):
        def event(category, name, microseconds):
            return {"ph": "X", "cat": category, "name": name, "ts": 1, "dur": microseconds}

        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace.json")
            trace.write_text(json.dumps({"traceEvents": [
                {"ph": "M", "name": "process_name"},
                event("cpu_op", "aten::mm", 70000),
                event("kernel", "nvjet_tst_1", 3000), event("kernel", "nvjet_tst_2", 5000),
                event("kernel", "void pack_kernel<A>(T)", 1000),
                event("kernel", "some_kernel", 12000),
                event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 2500)]}))
            kernels = profile.kernel_ms(trace, 2)
        self.assertEqual(kernels, {
            "all others": 6, "products": 4, "copies": 1.25, "packed gradients": 0.5})
        self.assertEqual(list(kernels)[0], "all others")
        self.assertEqual(
            profile.kinds_line("speed/job", kernels, {
                "aten::mm": 2, "aten::addmm": 1.5, "aten::add": 5, "tessera::adamw_": 3}),
            "speed/job kernels, ms a step: all others 6.0 (predicted 5.0), products 4.0 "
            "(predicted 3.5), copies 1.2, packed gradients 0.5, optimizer 0.0 (predicted 3.0)")


class Kits(unittest.TestCase):
    """The jobs."""

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.kit = jobs.Kit(self.folder, self.folder / "logs")
        self.phases = {phase.name: phase for phase in self.kit.phases()}

    def test_every_phase_ends_in_time(self):
        self.assertEqual(len(self.phases), len(self.kit.phases()))
        for phase in self.phases.values():
            self.assertEqual(len({one.name for one in phase.jobs}), len(phase.jobs), phase.name)
            self.assertLessEqual(
                jobs.seconds_of(phase), gpu_phases.PHASE_SECONDS, phase.name)

    def test_the_most_valuable_come_first(self):
        names = list(self.phases)
        self.assertEqual(names[:4], ["environment", "gate_kernels", "gate_losses", "speed"])
        self.assertEqual([name for name in names if self.phases[name].is_gate], names[:3])
        self.assertEqual(self.phases["speed"].jobs[0].name, "1b_tessera")
        # Two gates, and the speed with its peers.
        self.assertLess(sum(jobs.seconds_of(self.phases[name]) for name in names[:4]), 400)

    def test_every_test_that_needs_a_gpu_is_in_the_kit(self):
        run = {word for phase in self.phases.values() for one in phase.jobs
               for word in one.arguments}
        for file in (ROOT / "tests").rglob("*_gpu_test.cpp"):
            self.assertIn(f"--file={file.relative_to(ROOT / 'tests')}", run)

    def test_a_dry_run_sees_what_is_missing(self):
        phase = self.phases["speed_8b"]
        needed = (self.folder / "bin/train_gpt2", self.folder / "lib/libtessera_cuda.so")
        self.assertEqual(
            gpu_phases.missing_from(self.folder, phase),
            [f"8b_tessera: {path}" for path in needed])
        for path in needed:
            path.parent.mkdir()
            path.touch()
        self.assertEqual(gpu_phases.missing_from(self.folder, phase), [])

    def test_a_dry_run_sees_what_programs_read(self):
        packed = self.folder / "tests/zoo/fixtures/models"
        (packed / "gpt2").mkdir(parents=True)
        (packed / "packed.txt").write_text("gpt2\n")
        (packed / "gpt2/config.json").touch()

        def missing(name):
            phase = next(one for one in self.kit.phases() if one.name == name)
            return "\n".join(gpu_phases.missing_from(self.folder, phase))

        for name, file in (
                ("zoo", "models/gpt2/model.safetensors"),
                ("zoo", "models/gpt2/expected.safetensors"),
                ("speed", "peers/gpt2_cuda.py"),
                ("gate_losses", "bin/train_gpt2"),
                ("engine", "lib/libtessera_cuda.so"),
                ("engine", "lib/libtessera_shared_device.so"),
                ("bert_large", "bert_large/train.safetensors")):
            self.assertIn(file, missing(name))
        self.assertNotIn("gpt2/config.json", missing("zoo"))
        self.kit.prepare()
        self.assertNotIn("safetensors", missing("bert_large"))
        (packed / "packed.txt").unlink()
        self.assertIn("packed.txt", missing("zoo"))

    def test_what_failed_runs_again_to_find_out_why(self):
        summary = report.Summary()
        summary.phases = {
            "engine": {"trainer_gpu_test": {"outcome": "failed"},
                       "pipeline_gpu_test": {"outcome": "ok"}},
            "speed": {"1b_fsdp2": {"outcome": "noted"}}}
        with mock.patch.object(machine, "memcheck", lambda: ["sanitizer"]):
            blocking, memcheck = gpu_phases.again_phases(self.kit, summary)
        self.assertEqual([one.name for one in blocking.jobs], ["engine-trainer_gpu_test"])
        self.assertEqual(blocking.jobs[0].environment["CUDA_LAUNCH_BLOCKING"], "1")
        self.assertEqual(
            memcheck.jobs[0].words(self.folder),
            ["sanitizer", str(self.folder / "bin/engine_tests"),
             "--file=engine/trainer/trainer_gpu_test.cpp"])
        with mock.patch.object(machine, "memcheck", lambda: []):
            self.assertEqual(len(gpu_phases.again_phases(self.kit, summary)), 1)

    def test_larger_models_follow_on_what_passed(self):
        for gib, names in ((120, ["gpt_13b", "offload_7b"]), (100, ["offload_7b", "gpt_13b"])):
            with mock.patch.object(machine, "host_gib", lambda: gib):
                found = gpu_phases.again_phases(self.kit, report.Summary())
            self.assertEqual([phase.name for phase in found], names)


class Travels(unittest.TestCase):
    """What a lent machine takes."""

    def fits(self, *arguments):
        return subprocess.run([ROOT / "scripts/gpu_tests.sh", "fits", *arguments],
                              capture_output=True, text=True)

    def test_there_is_room_for_a_kit_beside_the_tracked_files(self):
        done = self.fits()
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_kit_that_is_too_large_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "files.tar.xz"
            file.touch()
            self.assertEqual(self.fits(folder).returncode, 0)
            os.truncate(file, 60 << 20)
            done = self.fits(folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn("has 60.00 MiB; of 62 MiB, -", done.stderr)


# The first of an offloaded step ends, and the second does not.
TRAINER = r"""#!/bin/sh
case "$*" in
  *model=llama*) sleep 60 & echo "{\"pid\": $!}"; wait ;;
  *mode=plain*) echo '{"losses": [10.9, 9.0, 8.0]}' ;;
  *) echo '{"losses": [10.9, 9.001, 8.001]}' ;;
esac
"""

class Packs(unittest.TestCase):
    """A folder as it is unpacked, with a torch that only has a version."""

    assert_ends = Phases.assert_ends

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.logs, self.out = self.folder / "logs", self.folder / "out"
        self.write("python/torch/__init__.py", """__version__ = '2.11.0+cu130'
class cuda:
  is_available = lambda: True
""")
        self.write("pack/bin/train_gpt2", TRAINER)
        for name in {one.program for phase in jobs.Kit(self.folder, self.logs).phases()
                     for one in phase.jobs} - {"sh", "python", "compare_cuda", "train_gpt2"}:
            self.write(f"pack/bin/{name}", "#!/bin/sh\n")
        self.write("pack/peers/compare_cuda.py", """import sys
print('{"peer": "%s", "step_ms": 5, "tokens_per_s": 9}' % sys.argv[1])
""")
        self.write("pack/lib/libtessera_cuda.so", "")
        self.write("pack/lib/libtessera_shared_device.so", "")
        self.write("path/ldd", "#!/bin/sh\nexit 0\n")
        self.write("path/nvidia-smi", """#!/bin/sh
case $1 in -L) echo 'GPU 0: one' ;; *) echo 143771 ;; esac
""")
        self.environment = {
            **os.environ, "PYTHONPATH": str(self.folder / "python"),
            "PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"}
        # Even where this test is in the background of a shell.
        self.wants_signals = [
            sys.executable, "-B", "-c",
            "import os, signal, sys\n"
            "for number in (1, 2, 15): signal.signal(number, signal.SIG_DFL)\n"
            "os.execvp(sys.argv[1], sys.argv[1:])"]

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def script(self, command, *arguments):
        return [sys.executable, "-B", str(ROOT / "scripts/gpu_phases.py"), command,
                str(self.folder / "pack"), *arguments,
                "--logs", str(self.logs), "--out", str(self.out)]

    def run_pack(self, *arguments):
        return subprocess.run(
            [*self.wants_signals, *self.script(*arguments)], env=self.environment,
            timeout=60, capture_output=True, text=True)

    def summary(self):
        return json.loads((self.out / "summary.json").read_text())

    def archived(self):
        """What came back."""
        self.assertEqual(sorted(file.name for file in self.out.iterdir()),
                         ["logs.tar.xz", "summary.json"])
        with tarfile.open(self.out / "logs.tar.xz") as packed:
            return packed.getnames()

    def table(self, output):
        """The lines after the last phase."""
        text = output[re.search("(?m)^gpu_phases: (run|quarter|again), ", output).start():]
        self.assertLessEqual(len(text), report.TABLE_CHARACTERS + 1)
        return text.splitlines()

    def test_a_quarter_runs_what_there_is_time_for(self):
        # 45 s are left for jobs: 8b_tessera, which hangs here, takes 50.
        done = self.run_pack("quarter", "--budget", "60")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.summary()
        self.assertEqual(
            list(found), [phase.name for phase in jobs.Kit(self.folder, self.logs).phases()])
        self.assertEqual(found["gate_losses"]["124m_losses"]["outcome"], "ok")
        self.assertEqual(found["speed"]["1b_tessera"]["outcome"], "ok")
        self.assertEqual(found["speed_8b"]["8b_tessera"]["outcome"], "not started")
        lines = self.table(done.stdout)
        self.assertRegex(lines[0], r"^gpu_phases: quarter, \d+ s of 60 s: \d+ ok, ")
        self.assertRegex(lines[1], "^speed/1b_tessera tessera: 5.0 ms")
        self.assertRegex("\n".join(lines), "(?m)^not started speed_8b: [0-9]+ s are left: 8b_tessera takes 50 s")
        self.assertIn("speed/1b_tessera.log", self.archived())

    def test_the_time_that_was_spent_before_is_of_the_budget(self):
        done = self.run_pack("quarter", "--budget", "60", "--spent", "43")
        self.assertEqual(done.returncode, 1)
        lines = self.table(done.stdout)
        self.assertRegex(lines[1], "the gate environment failed.*: takes [0-9]+ s, 2 s are left$")
        self.assertEqual(list(self.summary()), ["environment"])

    def test_a_broken_kernel_ends_a_quarter(self):
        self.write("pack/bin/runtime_tests", """#!/bin/sh
case $* in
  *update_gpu_test*) echo "update.cpp:7: Failure"; echo "bits differ"; exit 1 ;;
esac
""")
        started = time.monotonic()
        done = self.run_pack("quarter", "--budget", "300")
        self.assertLess(time.monotonic(), started + 20)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            self.table(done.stdout)[1],
            "the gate gate_kernels failed.*update_gpu_test: 1: update.cpp:7: Failure bits differ")
        self.assertNotIn("speed", self.summary())
        self.assertIn("gate_kernels/update_gpu_test.log", self.archived())

    def test_losses_that_differ_end_a_quarter(self):
        for text, last in (("9.1", "step 2 is 9.100000, plain LibTorch's is 9.000000"),
                           ("9.0 --", "printed no numbers"), ("null", "step 2 is not finite"),
                           ("9.0, 8.5", "losses are 4, plain LibTorch's 3"),
                           ("'; echo no memory >&2; exit 3; '", "ended with 3: no memory")):
            self.write("pack/bin/train_gpt2", TRAINER.replace("9.001", text))
            done = self.run_pack("quarter", "--budget", "300")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(
                self.table(done.stdout)[1],
                f"the gate gate_losses failed.*124m_losses: 1: Error: .*{last}")
            self.assertNotIn("speed", self.summary())

    def test_again_reads_what_failed(self):
        self.write("path/compute-sanitizer", '#!/bin/sh\necho "checks $*"\n')
        self.write("pack/bin/zoo_tests", '#!/bin/sh\ntest "$CUDA_LAUNCH_BLOCKING"\n')
        self.assertEqual(self.run_pack("run", "zoo").returncode, 1)
        done = self.run_pack("again", "--budget", "1000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.summary()
        self.assertEqual(list(found), ["zoo", "again_blocking", "again_memcheck"])
        self.assertEqual(len(found["again_blocking"]), len(found["zoo"]))
        log = self.logs / "again_memcheck/zoo-smoke_gpu_test_0.log"
        self.assertRegex(log.read_text(), "checks --tool memcheck .*/bin/zoo_tests --file=")
        shutil.rmtree(self.logs)
        self.assertIn("--summary", self.run_pack("again", "--budget", "1000").stderr)
        done = self.run_pack("again", "--budget", "1000", "--summary",
                             str(self.out / "summary.json"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_phases_add_to_those_before(self):
        for name in ("zoo", "engine"):
            done = self.run_pack("run", name)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(self.summary()), ["zoo", "engine"])
        self.assertIn("zoo/smoke_gpu_test_0.log", self.archived())
        self.run_pack("quarter", "--budget", "15")
        self.assertNotIn("zoo", self.summary())

    def started(self):
        """The process that the program which does not end has started."""
        log = self.logs / "speed_8b/8b_tessera.log"
        ends = time.monotonic() + 30
        while not log.exists() or "}\n" not in log.read_text():
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.01)
        return json.loads(log.read_text().splitlines()[-1])["pid"]

    def check_stopped(self, number):
        found = self.summary()
        self.assertEqual(list(found), ["gate_losses", "speed_8b"])
        self.assertEqual(found["gate_losses"]["124m_losses"]["outcome"], "ok")
        stopped = found["speed_8b"]["8b_tessera"]
        self.assertEqual((stopped["outcome"], stopped["code"]),
                         ("failed", f"stopped by {number.name}"))
        self.assertIn("speed_8b/8b_tessera.log", self.archived())

    def test_a_signal_ends_the_programs_that_run(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            shutil.rmtree(self.logs, ignore_errors=True)
            shutil.rmtree(self.out, ignore_errors=True)
            with subprocess.Popen(
                    [*self.wants_signals,
                     *self.script("run", "gate_losses", "speed_8b", "levers")],
                    env=self.environment, stdout=subprocess.PIPE, text=True) as program:
                try:
                    pid = self.started()
                    program.send_signal(number)
                    output, _ = program.communicate(timeout=20)
                finally:
                    program.kill()
            self.assertEqual(program.returncode, 128 + number)
            self.assertIn(f"stopped by {number.name}", self.table(output)[1])
            self.assert_ends(pid)
            self.check_stopped(number)

    def test_a_signal_that_is_ignored_ends_nothing(self):
        with subprocess.Popen(
                ["nohup", *self.script("run", "gate_losses", "speed_8b")],
                env=self.environment,
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
        command = [*self.wants_signals, *self.script("run", "gate_losses", "speed_8b")]
        runner, terminal = pty.fork()
        if runner == 0:
            os.execve(sys.executable, command, self.environment)
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
        done = self.run_pack("run", "levers")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout, "(?m)^skipped 1b_deepspeed: deepspeed cannot be imported: .*not here")
        self.assertRegex("\n".join(self.table(done.stdout)), "skipped levers/1b_deepspeed: ")
        self.assertEqual(self.summary()["levers"]["1b_deepspeed"]["outcome"], "skipped")
        self.assertIn("would be skipped", self.run_pack("dry-run", "levers").stdout)

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
            done = self.run_pack("run", "environment")
            found = self.summary()["environment"]
            self.assertEqual( # jobs at a time end in any order
                sorted(name for name in found if found[name]["outcome"] == "failed"),
                failed)
            self.assertEqual(done.returncode, 1 if failed else 0)
            for name in failed:
                self.assertRegex(
                    "\n".join(found[name]["failure"]), "Error: .* finds no device")
            if failed == ["device"]:
                self.assertIn("no driver", found["device"]["failure"])

    def test_a_dry_run_sees_libraries_that_are_not_found(self):
        self.assertEqual(self.run_pack("dry-run", "speed_8b").returncode, 0)
        self.write("path/ldd", """#!/bin/sh
case $1 in
  *train_gpt2) echo "  libneeded.so.3 => not found"; echo "  libc.so.6 => /lib/libc" ;;
  *.so) echo "not a dynamic executable" >&2; exit 1 ;;
esac
""")
        done = self.run_pack("dry-run", "speed_8b")
        self.assertEqual(done.returncode, 1)
        self.assertIn("libneeded.so.3 => not found, for train_gpt2\n", done.stderr)
        self.assertIn(
            "not a dynamic executable, for libtessera_cuda.so, "
            "libtessera_shared_device.so\n", done.stderr)
        self.assertEqual(done.stderr.count("missing:"), 2, done.stderr)

    def test_a_dry_run_sees_tests_that_are_missing(self):
        self.assertEqual(self.run_pack("dry-run", "gate_kernels").returncode, 0)
        self.write("pack/bin/runtime_tests", """#!/bin/sh
case $* in
  *pack_gpu_test.cpp\\ --gtest_list_tests) echo "no fixture" >&2; exit 3 ;;
  *gtest_list_tests) exit 0 ;;
esac
exit 1
""")
        done = self.run_pack("dry-run", "gate_kernels")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            done.stderr, "^missing: .*/runtime_tests --file=runtime/kernels/"
            "pack_gpu_test.cpp ends with 3: no fixture\n$")

    def test_a_dry_run_sees_that_torch_is_missing(self):
        for text, reason in (
                ("raise ImportError('not here')", "not here"),
                ("raise OSError('libtorch.so')", "libtorch.so"),
                ("__version__ = '2.10.0'", "torch is 2.10.0")):
            self.write("python/torch/__init__.py", text + "\n")
            done = self.run_pack("dry-run", "speed_8b")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"missing: .*{reason}")
            done = self.run_pack("run", "speed_8b")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"gpu_phases: .*{reason}")
            self.assertNotIn("Traceback", done.stderr)

    def test_a_dry_run_starts_no_program_without_a_device(self):
        done = self.run_pack("dry-run", "bert_large")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("(within 11 GiB of the device)", done.stdout)
        self.assertNotIn("per_process_memory_fraction", done.stdout)

    def test_what_is_packed_runs(self):
        """The script as it stands on the other machine, with an empty archive."""
        kit = self.folder / "kit"
        shutil.copytree(ROOT / "scripts/gpu_kit", kit / "gpu_kit",
                        ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("gpu_tests.sh", "gpu_phases.py"):
            shutil.copy(ROOT / "scripts" / name, kit)
        with tarfile.open(kit / "files.tar.xz", "w:xz"):
            pass
        environment = {**self.environment, "TMPDIR": str(self.folder), "OUT": str(self.out)}

        def tests(*arguments):
            return subprocess.run([kit / "gpu_tests.sh", *arguments], cwd=self.folder,
                                  env=environment, capture_output=True, text=True)

        done = tests("dry-run", "speed_8b")
        self.assertIn("missing: 8b_tessera", done.stderr)
        self.assertEqual(done.returncode, 1)
        done = tests("quarter", "--budget", "100")
        self.assertRegex(done.stdout, "the gate gate_kernels failed.*runtime_tests")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.archived()


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what scripts/gpu_tests.sh packed, in phases that each end by themselves.

    gpu_phases.py FOLDER [PHASE ...] [--logs FOLDER] [--dry-run] [--list]

FOLDER holds bin/, lib/, peers/, site/ (DeepSpeed) and tests/. Without PHASE all
run, in the order of --list. The programs of a phase run beside each other,
unless their times are the result. Each has a log, LOGS/PHASE/NAME.log;
LOGS/summary.json is rewritten after each program, so that a phase that is cut
off loses nothing. SIGINT, SIGTERM and SIGHUP end the programs that run, and
then this one, with 128 + the signal's number.

A program's outcome is ok, failed, skipped (a peer that is not installed) or
noted (a peer's failure); only failed makes the exit code 1.

A phase takes at most 8 minutes: a program that would end later is stopped then
and counts as failed. Nothing needs more than 110 GB of host memory.

--dry-run starts none of them: it prints the commands and checks that FOLDER has
the programs, their test files, scripts, fixtures and shared libraries, and that
this Python has torch. What is missing is named, and makes the exit code 1.
"""
import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

PHASE_SECONDS = 480
CAP_GIB = 11  # the consumer card that BERT-Large has to fit
LINES_OF_A_FAILURE = 25
DEVICE_CHECK = """
nvidia-smi -L 2>&1 | grep '^GPU' || {
  nvidia-smi -L 2>&1
  echo 'Error: nvidia-smi finds no device; the other phases need one.'
  exit 1
}"""
TORCH_CHECK = """
import sys, torch
if not torch.cuda.is_available():
    sys.exit('Error: torch finds no device that the driver lets it use.')
"""


@dataclasses.dataclass
class Job:
    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    seconds: int = 240
    is_information: bool = False  # its failure is not one of Tessera's
    needs: list = dataclasses.field(default_factory=list)  # files it reads
    module: str = ""  # of Python, without which the job is skipped
    is_capped: bool = False  # to CAP_GIB of the device


@dataclasses.dataclass
class Phase:
    name: str
    jobs: list
    workers: int = 1  # programs at a time


class Lacking(Exception):
    """What the machine, or its Python, would have to have."""


class Kit:
    """The jobs, for the folder that was packed."""

    def __init__(self, folder, logs):
        self.folder = folder
        self.work = logs / "work"

    def program(self, name, *arguments):
        return [str(self.folder / "bin" / name), *arguments]

    def tests(self, file, repeat=1, seconds=240, name=None, gtest="*", needs=(),
              **environment):
        room = file.split("/")[0]
        command = self.program(f"{room}_tests", f"--file={file}")
        if repeat > 1:
            command.append(f"--gtest_repeat={repeat}")
        if gtest != "*":
            command.append(f"--gtest_filter={gtest}")
        return Job(name or pathlib.Path(file).stem, command,
                   {"TESSERA_TEST_DEVICE": "cuda", **environment}, seconds,
                   needs=[self.cuda_library(), *needs])

    def shards(self, file, count, seconds, needs=()):
        """A file's tests over `count` processes."""
        return [
            self.tests(file, seconds=seconds, name=f"{pathlib.Path(file).stem}_{i}",
                       needs=needs, GTEST_TOTAL_SHARDS=str(count),
                       GTEST_SHARD_INDEX=str(i))
            for i in range(count)]

    def cuda_library(self):
        """What programs load by themselves, so that ldd does not show it."""
        return self.folder / "lib/libtessera_cuda.so"

    def smoke_models(self):
        """The files of the models that the zoo's smoke test trains."""
        models = self.folder / "tests/zoo/fixtures/models"
        listed = models / "packed.txt"
        names = listed.read_text().split() if listed.exists() else []
        return [listed, *(models / name / file for name in names for file in (
            "config.json", "model.safetensors", "expected.safetensors"))]

    def gpt2(self, name, *arguments, seconds=150, environment=None):
        return Job(name, self.program("train_gpt2", "device=cuda", "dtype=bfloat16",
                                      "threads=16", *arguments),
                   environment or {}, seconds, needs=[self.cuda_library()])

    def compare(self, name, *arguments, seconds, **options):
        return Job(name, [sys.executable, str(self.folder / "peers/compare_cuda.py"),
                          "--program", str(self.folder / "bin/train_gpt2"), *arguments],
                   {"PYTHONPATH": str(self.folder / "site")}, seconds,
                   needs=[self.folder / "peers/gpt2_cuda.py",
                          self.cuda_library()], **options)

    def phases(self):
        size_124m = ["layers=12", "width=768", "heads=12"]
        size_1b = ["layers=24", "width=2048", "heads=16", "batch=8", "sequence=1024"]
        size_7b = ["layers=32", "width=4096", "heads=32", "batch=4", "sequence=1024",
                   "steps=2", "warmup=1", "lazy=1"]
        size_13b = ["layers=40", "width=5120", "heads=40", "batch=1", "sequence=2048",
                    "steps=2", "warmup=1", "lazy=1"]
        host = "placement.optimizer=host"
        nvme = f"memory.nvme_path={self.work / 'nvme'}"
        return [
            Phase("environment", [
                Job("device", ["sh", "-c", DEVICE_CHECK], seconds=60),
                Job("device_of_torch", [sys.executable, "-c", TORCH_CHECK],
                    seconds=120),
                Job("machine", ["sh", "-c", "nvidia-smi; free -g; ulimit -a; df -h /tmp; nproc; uname -a"],
                    seconds=60, is_information=True),
                Job("libraries", ["sh", "-c", f"ldd {self.folder}/bin/* {self.folder}/lib/*.so | "
                                  "grep 'not found' | sort -u | grep . && exit 1 || true"],
                    seconds=60)]),
            Phase("kernels", [
                self.tests(file) for file in [
                    "runtime/comm/communicator_gpu_test.cpp",
                    "runtime/kernels/update_gpu_test.cpp",
                    "runtime/kernels/pack_gpu_test.cpp",
                    "runtime/kernels/counter_random_gpu_test.cpp",
                    "runtime/kernels/mixed_norm_gpu_test.cpp",
                    "offload/stores/shard_store_gpu_test.cpp"]], workers=3),
            Phase("engine", [
                self.tests(file, seconds=450) for file in [
                    "engine/cuda_training_gpu_test.cpp",
                    "sharding/lazy/move_module_gpu_test.cpp",
                    "engine/activation_offload_gpu_test.cpp",
                    "engine/optim/placement_gpu_test.cpp",
                    "engine/trainer/trainer_gpu_test.cpp",
                    "pipeline/pipeline_gpu_test.cpp"]], workers=6),
            Phase("matrix", self.shards("engine/matrix_test.cpp", 6, 460), workers=6),
            Phase("zoo", self.shards("zoo/smoke_gpu_test.cpp", 6, 400,
                                     self.smoke_models()), workers=6),
            Phase("streams", [
                self.tests("engine/cuda_training_gpu_test.cpp", repeat=10,
                           name=f"connections_{connections}",
                           CUDA_DEVICE_MAX_CONNECTIONS=str(connections))
                for connections in (1, 8, 32)] + [
                self.tests("engine/cuda_training_gpu_test.cpp", name="launch_blocking",
                           CUDA_LAUNCH_BLOCKING="1"),
                self.tests("engine/activation_offload_gpu_test.cpp", repeat=5,
                           name="activations_again")], workers=3),
            Phase("nccl", [
                self.tests(file, name=pathlib.Path(file).stem, TESSERA_FORCE_NCCL="1")
                for file in ["engine/cuda_training_gpu_test.cpp",
                             "runtime/comm/communicator_gpu_test.cpp",
                             "pipeline/pipeline_gpu_test.cpp"]], workers=3),
            Phase("offload", [
                self.gpt2(f"1b_{name}", *size_1b, "steps=4", "warmup=2", "lazy=1", *keys)
                for name, keys in [
                    ("device", []),
                    ("host_auto", [host]),
                    ("host_ratio_0", [host, "offload.ratio=0"]),
                    ("host_ratio_1", [host, "offload.ratio=1"]),
                    ("parameters_host", [host, "placement.parameters=host"]),
                    ("nvme", ["placement.optimizer=nvme", nvme])]]),
            Phase("offload_7b", [
                self.gpt2(f"7b_{name}", *size_7b, *keys)
                for name, keys in [
                    ("host_auto", [host]),
                    ("host_ratio_0", [host, "offload.ratio=0"]),
                    ("host_ratio_1", [host, "offload.ratio=1"])]]),
            Phase("bert_large", [self.bert_large()]),
            # 13B under a budget: float32 master weights and bfloat16 moments,
            # 104 GB, rest on the host but for what the device has room for.
            Phase("gpt_13b", [
                self.gpt2("13b_budget", *size_13b, host,
                          "optimizer.moment_dtype=bfloat16",
                          "precision.gradients=bfloat16",
                          "memory.device_bytes=100GiB", "memory.host_bytes=105GB",
                          seconds=470)]),
            Phase("speed", [
                self.compare("1b_peers", "--rounds", "1", "--engine", "lazy=1", seconds=240),
                *[self.gpt2(f"1b_{name}", *size_1b, "steps=8", "warmup=3", "lazy=1", *keys, seconds=90)
                  for name, keys in [
                      ("tessera", []),
                      ("norms_low", ["precision.norms_in_float32=false"]),
                      ("gradients_low", ["precision.gradients=bfloat16"]),
                      ("update_in_backward", ["update_in_backward=1", "clip=0"]),
                      ("helpers", ["helpers=1"])]],
                *[self.gpt2(f"124m_{mode}", *size_124m, f"mode={mode}", "batch=2", "sequence=256",
                            "steps=50", seconds=60)
                  for mode in ("plain", "tessera")]]),
            # It compiles its operators at their first use.
            Phase("deepspeed", [
                self.compare("1b_deepspeed", "--rounds", "1", "--engine", "lazy=1",
                             "tessera", "deepspeed", seconds=240,
                             is_information=True, module="deepspeed"),
                self.compare("1b_deepspeed_offload", "--rounds", "1", "--steps", "4", "--warmup", "2",
                             "--engine", f"lazy=1 {host}",
                             "tessera", "deepspeed-offload", seconds=240,
                             is_information=True, module="deepspeed")]),
            Phase("profile", [
                self.gpt2("1b_profile", *size_1b, "steps=3", "warmup=3", "lazy=1",
                          f"profile={self.work / 'trace.json'}")]),
            # Last, because it takes the most memory of the host: 3B parameters,
            # 4 x 11 GB in pinned blocks of powers of two.
            Phase("offload_peers", [
                self.compare("3b_peers", "--rounds", "1", "--steps", "3", "--warmup", "2",
                             "--layers", "32", "--width", "2560", "--heads", "32", "--batch", "4",
                             "--engine", f"lazy=1 {host}",
                             "tessera", "fsdp2-offload", seconds=470)]),
        ]

    def bert_large(self):
        """BERT-Large from new weights, under a limit that the allocator holds."""
        folder = self.work / "bert_large"
        return Job("bert_large", self.program(
            "tessera-run", "train", str(folder / "config.json")), seconds=300,
            needs=[self.cuda_library(), *(folder / name for name in (
                "config.json", "model.json", "train.safetensors"))],
            is_capped=True)

    def prepare(self):
        """The files that jobs read."""
        (self.work / "nvme").mkdir(parents=True, exist_ok=True)
        folder = self.work / "bert_large"
        folder.mkdir(exist_ok=True)
        rows, length = 96, 512
        write_safetensors(folder / "train.safetensors", {
            "input_ids": [rows, length,
                          [5 + (r * 31 + c * 7) % 30000 for r in range(rows) for c in range(length)]],
            "labels": [rows, [r % 2 for r in range(rows)]]})
        (folder / "model.json").write_text(json.dumps({
            "model_type": "bert", "architectures": ["BertForSequenceClassification"],
            "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24,
            "num_attention_heads": 16, "intermediate_size": 4096,
            "max_position_embeddings": 512, "num_labels": 2}))
        (folder / "config.json").write_text(json.dumps({
            "task": "examples", "model": {"config": str(folder / "model.json")},
            "data": {"train": str(folder / "train.safetensors")},
            "optimizer": {"type": "adamw", "lr": 2e-5},
            "placement": {"optimizer": "host"},
            "training": {"epochs": 1, "batch_size": 8, "accumulate": 4, "clip_grad_norm": 1.0,
                         "log_every": 1},
            "device": "cuda",
            "precision": {"parameters": "float16"},
            "memory": {"device_bytes": CAP_GIB << 30},
            "output": {"folder": str(folder / "run"), "overwrite": True}}))


def write_safetensors(path, tensors):
    """{name: [sizes ..., numbers]} as int64."""
    header, data = {}, b""
    for name, (*sizes, numbers) in tensors.items():
        raw = struct.pack(f"<{len(numbers)}q", *numbers)
        header[name] = {"dtype": "I64", "shape": sizes,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def cap_fraction():
    """CAP_GIB as a fraction of the first device's memory."""
    try:
        total = float(subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total",
             "--format=csv,noheader,nounits", "--id=0"],
            check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise Lacking(f"nvidia-smi does not tell the device's memory, of which "
                      f"the job may use {CAP_GIB} GiB: {error}") from error
    return min(1.0, CAP_GIB * 1024 / total)


def library_path(folder):
    """The packed libraries, the wheel's, and those that the wheel depends on."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: libraries of the wheel
        raise Lacking(f"{sys.executable} has no torch that it can import "
                      f"({error}); PYTHON= names another Python.") from error
    root = pathlib.Path(torch.__file__).parent
    version = torch.__version__.split("+")[0]
    if version != "2.11.0":
        raise Lacking(f"torch is {version}; the tests need 2.11.0.")
    nvidia = sorted(root.parent.glob("nvidia/*/lib"))
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([str(folder / "lib"), str(root / "lib"), *map(str, nvidia),
                     *([known] if known else [])])


def line_of(command, environment):
    words = [f"{k}={v}" for k, v in environment.items()] + command
    return " ".join(words).replace("\n", " ")


def import_command(module):
    return [sys.executable, "-c", f"import {module}"]


def not_imported(job, output):
    return f"{job.module} cannot be imported: {last_line(output)}"


def last_line(text):
    return (text.strip().splitlines() or ["no reason given"])[-1]


def first_failure(text):
    """The lines of a log that say what went wrong."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.search(r"Failure$|: Failure|\[  FAILED  \]|[Ee]rror|what\(\)", line):
            return lines[max(0, i - 2):i + LINES_OF_A_FAILURE]
    return lines[-LINES_OF_A_FAILURE:]


def say(line):
    try:
        print(line, flush=True)
    except OSError:
        # The terminal has hung up. Later lines must not fail for that, for the
        # summary comes after them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class Programs:
    """Those that run. Each has a session of its own, which no signal of the
    terminal reaches: they are ended here."""

    def __init__(self):
        self.groups = set()
        self.signal = None  # that ended them

    def end_on_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores some, as do shells for what is in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.end)

    def end(self, number, _frame):
        self.signal = signal.Signals(number)
        for group in list(self.groups):
            kill_group(group)

    def run(self, command, output, environment, seconds):
        """@return the exit code, or why there is none."""
        with subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True) as program:
            self.groups.add(program.pid)
            try:
                if self.signal:  # it came before the group was known
                    kill_group(program.pid)
                code = program.wait(timeout=max(seconds, 1))
            except subprocess.TimeoutExpired:
                code = f"stopped after {seconds:.0f} s"
            finally:
                # Ranks that it has started would hold the device's memory.
                kill_group(program.pid)
                self.groups.remove(program.pid)
        if self.signal and code == -signal.SIGKILL:
            return f"stopped by {self.signal.name}"
        return code


def start_job(job, output, environment, deadline, programs):
    """@return the exit code, or what there is in its place; whether the job is
    skipped."""
    added = dict(job.environment)
    if job.is_capped:
        added["PYTORCH_CUDA_ALLOC_CONF"] = (
            f"per_process_memory_fraction:{cap_fraction():.4f}")
    output.write(line_of(job.command, added) + "\n")
    output.flush()
    environment = {**environment, **added}
    ends = min(deadline, time.monotonic() + job.seconds)
    if job.module:
        code = programs.run(import_command(job.module), output, environment,
                            ends - time.monotonic())
        if code != 0:
            return code, not programs.signal
    return programs.run(job.command, output, environment,
                        ends - time.monotonic()), False


def run_job(job, log, environment, deadline, programs):
    """@return what summary.json says about the job; None if a signal came
    before it."""
    if programs.signal:
        return None
    started = time.monotonic()
    is_skipped = False
    with open(log, "w", encoding="utf-8") as output:
        try:
            code, is_skipped = start_job(
                job, output, environment, deadline, programs)
        except (OSError, Lacking) as error:
            code = str(error)
    # Its first line is the command.
    text = log.read_text(encoding="utf-8", errors="replace").partition("\n")[2]
    if is_skipped:
        outcome, code = "skipped", not_imported(job, text)
    elif code == 0 and "no CUDA device" in text:
        outcome, code = "failed", "tests skip: no CUDA device"
    elif code == 0:
        outcome = "ok"
    else:
        outcome = "noted" if job.is_information else "failed"
    is_told = outcome in ("failed", "noted")
    return {"outcome": outcome, "code": code,
            "seconds": round(time.monotonic() - started, 1),
            "results": [json.loads(line) for line in text.splitlines() if line.startswith('{"')],
            "failure": first_failure(text) if is_told else []}


def run_phase(phase, logs, environment, summary, programs):
    folder = logs / phase.name
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PHASE_SECONDS
    say(f"== {phase.name}")
    with concurrent.futures.ThreadPoolExecutor(phase.workers) as pool:
        jobs = {pool.submit(run_job, job, folder / f"{job.name}.log",
                            environment, deadline, programs): job
                for job in phase.jobs}
        while jobs:
            # A signal that comes as a wait begins does not end it, and its
            # handler runs after it.
            done, _ = concurrent.futures.wait(
                jobs, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                name, result = jobs.pop(future).name, future.result()
                if result is None:
                    continue
                summary.setdefault(phase.name, {})[name] = result
                (logs / "summary.json").write_text(json.dumps(summary, indent=1))
                show(name, result)


def show(name, result):
    outcome = result["outcome"]
    say(f"{'FAILED' if outcome == 'failed' else outcome:7} {name}: "
        f"{result['code']}, {result['seconds']} s")
    for line in result["results"]:
        say(f"    {json.dumps(line)}")
    for line in result["failure"]:
        say(f"    | {line}")


def missing_from(folder, phase):
    """What the phase's commands name or read, and the folder lacks."""
    missing = {}  # by what is missing, for jobs share programs
    for job in phase.jobs:
        named = [a for a in job.command if a.startswith(str(folder))]
        for path in [*named, *job.needs]:
            if not pathlib.Path(path).exists():
                missing.setdefault(str(path), job.name)
        file = next((a[7:] for a in job.command if a.startswith("--file=")), None)
        program = pathlib.Path(job.command[0])
        if file and program.exists() and file.encode() not in program.read_bytes():
            missing.setdefault(f"{program} has no {file}", job.name)
    return [f"{job}: {what}" for what, job in missing.items()]


def missing_libraries(folder, path):
    """What the packed programs and libraries do not find in `path`."""
    missing = {}  # by what is missing, for most need the same ones
    for file in sorted([*folder.glob("bin/*"), *folder.glob("lib/*.so*")]):
        done = subprocess.run(
            ["ldd", str(file)], env={**os.environ, "LD_LIBRARY_PATH": path},
            capture_output=True, text=True)
        lines = {line.strip() for line in done.stdout.splitlines()
                 if "not found" in line}
        if done.returncode != 0:
            lines.add(last_line(done.stdout + done.stderr))
        for line in lines:
            missing.setdefault(line, []).append(file.name)
    return [f"{line}, for {', '.join(names)}" for line, names in missing.items()]


def dry_run(folder, phases):
    """@return exit code."""
    missing = []
    for phase in phases:
        print(f"== {phase.name}, {phase.workers} at a time")
        for job in phase.jobs:
            print("  ", line_of(job.command, job.environment)
                  + f" (within {CAP_GIB} GiB of the device)" * job.is_capped)
            if job.module:
                done = subprocess.run(
                    import_command(job.module),
                    env={**os.environ, **job.environment},
                    capture_output=True, text=True)
                if done.returncode != 0:
                    print(f"   would be skipped: {not_imported(job, done.stderr)}")
        missing += missing_from(folder, phase)
    try:
        missing += missing_libraries(folder, library_path(folder))
    except (OSError, Lacking) as error:
        missing.append(str(error))
    for line in missing:
        print("missing:", line, file=sys.stderr)
    return 1 if missing else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER",
                        help="what was packed, unpacked")
    parser.add_argument("phases", nargs="*", metavar="PHASE",
                        help="what to run (default: all)")
    parser.add_argument("--logs", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("OUT", "gpu_logs")),
                        help="where logs and summary.json go"
                        " (default: $OUT, or gpu_logs)")
    parser.add_argument("--dry-run", action="store_true",
                        help="print the commands, and what they lack")
    parser.add_argument("--list", action="store_true",
                        help="print the phases' names")
    options = parser.parse_intermixed_args()
    folder, logs = options.folder.resolve(), options.logs.resolve()
    kit = Kit(folder, logs)
    known = {phase.name: phase for phase in kit.phases()}
    if options.list:
        print("\n".join(known))
        return 0
    if unknown := [name for name in options.phases if name not in known]:
        sys.exit(f"gpu_phases: there is no phase '{unknown[0]}'; there are: {', '.join(known)}.")
    chosen = [known[name] for name in options.phases or known]
    kit.prepare()
    if options.dry_run:
        return dry_run(folder, chosen)
    try:
        path = library_path(folder)
    except Lacking as error:
        sys.exit(f"gpu_phases: {error}")
    environment = {**os.environ, "LD_LIBRARY_PATH": path,
                   "TESSERA_SOURCE_DIR": str(folder), "TORCH_SHOW_CPP_STACKTRACES": "1"}
    results = logs / "summary.json"  # of phases that ran before, too
    summary = json.loads(results.read_text()) if results.exists() else {}
    programs = Programs()
    programs.end_on_signals()
    outcomes = {}  # of this run
    for phase in chosen:
        if programs.signal:
            break
        summary.pop(phase.name, None)
        run_phase(phase, logs, environment, summary, programs)
        for name, result in summary.get(phase.name, {}).items():
            outcomes[f"{phase.name}/{name}"] = result["outcome"]
    return conclude(outcomes, programs.signal)


def conclude(outcomes, ended_by):
    """@return exit code."""
    found = {
        kind: ", ".join(name for name in outcomes if outcomes[name] == kind)
        for kind in ("failed", "skipped", "noted")}
    said = [f"stopped by {ended_by.name}"] if ended_by else []
    said += [f"{kind}: {names}" for kind, names in found.items() if names]
    say("gpu_phases: " + ("; ".join(said) or "all passed"))
    if ended_by:
        return 128 + ended_by
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

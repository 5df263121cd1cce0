#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what scripts/gpu_tests.sh packed, in phases that each end by themselves.

    gpu_phases.py FOLDER [PHASE ...] [--logs FOLDER] [--dry-run] [--list]

FOLDER holds bin/, lib/, peers/, site/ (DeepSpeed) and tests/. Without PHASE all run, in the
order of --list. The programs of a phase run beside each other, unless their
times are the result. Each has a log, LOGS/PHASE/NAME.log; LOGS/summary.json is
rewritten after each program, so that a phase that is cut off loses nothing.

A phase takes at most 8 minutes: a program that would end later is stopped then
and counts as failed. Nothing needs more than 110 GB of host memory.

--dry-run starts nothing: it prints the commands and checks that the programs,
the test files and the scripts that they name are in FOLDER.
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


@dataclasses.dataclass
class Job:
    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    seconds: int = 240
    is_information: bool = False  # its failure is not one of Tessera's


@dataclasses.dataclass
class Phase:
    name: str
    jobs: list
    workers: int = 1  # programs at a time


class Kit:
    """The jobs, for the folder that was packed."""

    def __init__(self, folder, logs):
        self.folder = folder
        self.work = logs / "work"

    def program(self, name, *arguments):
        return [str(self.folder / "bin" / name), *arguments]

    def tests(self, file, repeat=1, seconds=240, name=None, gtest="*", **environment):
        room = file.split("/")[0]
        command = self.program(f"{room}_tests", f"--file={file}")
        if repeat > 1:
            command.append(f"--gtest_repeat={repeat}")
        if gtest != "*":
            command.append(f"--gtest_filter={gtest}")
        return Job(name or pathlib.Path(file).stem, command,
                   {"TESSERA_TEST_DEVICE": "cuda", **environment}, seconds)

    def shards(self, file, count, seconds):
        """A file's tests over `count` processes."""
        return [
            self.tests(file, seconds=seconds, name=f"{pathlib.Path(file).stem}_{i}",
                       GTEST_TOTAL_SHARDS=str(count), GTEST_SHARD_INDEX=str(i))
            for i in range(count)]

    def gpt2(self, name, *arguments, seconds=150, environment=None):
        return Job(name, self.program("train_gpt2", "device=cuda", "dtype=bfloat16",
                                      "threads=16", *arguments),
                   environment or {}, seconds)

    def compare(self, name, *arguments, seconds, is_information=False):
        return Job(name, [sys.executable, str(self.folder / "peers/compare_cuda.py"),
                          "--program", str(self.folder / "bin/train_gpt2"), *arguments],
                   {"PYTHONPATH": str(self.folder / "site")}, seconds, is_information)

    def phases(self):
        size_124m = ["layers=12", "width=768", "heads=12"]
        size_1b = ["layers=24", "width=2048", "heads=16", "batch=8", "sequence=1024"]
        size_7b = ["layers=32", "width=4096", "heads=32", "batch=4", "sequence=1024",
                   "steps=2", "warmup=1", "lazy=1"]
        size_13b = ["layers=40", "width=5120", "heads=40", "batch=1", "sequence=2048",
                    "steps=2", "warmup=1", "lazy=1"]
        host = "optimizer.placement=host"
        nvme = f"memory.nvme_path={self.work / 'nvme'}"
        return [
            Phase("environment", [
                Job("machine", ["sh", "-c", "nvidia-smi; free -g; ulimit -a; df -h /tmp; nproc; uname -a"],
                    seconds=60, is_information=True),
                Job("libraries", ["sh", "-c", f"ldd {self.folder}/bin/* {self.folder}/lib/*.so | grep 'not found' && exit 1 || true"],
                    seconds=60)]),
            Phase("kernels", [
                self.tests(file) for file in [
                    "runtime/comm/communicator_gpu_test.cpp",
                    "runtime/kernels/update_gpu_test.cpp",
                    "runtime/kernels/pack_gpu_test.cpp",
                    "runtime/kernels/counter_random_gpu_test.cpp",
                    "runtime/kernels/mixed_norm_gpu_test.cpp",
                    "offload/shard_store_gpu_test.cpp"]], workers=3),
            Phase("engine", [
                self.tests(file, seconds=450) for file in [
                    "engine/cuda_training_gpu_test.cpp",
                    "sharding/lazy/move_module_gpu_test.cpp",
                    "engine/activation_offload_gpu_test.cpp",
                    "engine/optim/placement_gpu_test.cpp",
                    "engine/trainer/trainer_gpu_test.cpp",
                    "pipeline/pipeline_gpu_test.cpp"]], workers=6),
            Phase("matrix", self.shards("engine/matrix_test.cpp", 6, 460), workers=6),
            Phase("zoo", self.shards("zoo/smoke_gpu_test.cpp", 6, 400), workers=6),
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
                    ("parameters_host", [host, "memory.parameters=host"]),
                    ("nvme", ["optimizer.placement=nvme", nvme])]]),
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
                             "tessera", "deepspeed", seconds=240, is_information=True),
                self.compare("1b_deepspeed_offload", "--rounds", "1", "--steps", "4", "--warmup", "2",
                             "--engine", f"lazy=1 {host}",
                             "tessera", "deepspeed-offload", seconds=240, is_information=True)]),
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
            "tessera-run", "train", str(folder / "config.json")),
            {"PYTORCH_CUDA_ALLOC_CONF":
                f"per_process_memory_fraction:{cap_fraction():.4f}"}, 300)

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
            "optimizer": {"type": "adamw", "lr": 2e-5, "placement": "host"},
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
        total = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=0"],
            check=True, capture_output=True, text=True).stdout
        return min(1.0, CAP_GIB * 1024 / float(total))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 1.0  # without a device: a dry run


def library_path(folder):
    """The packed libraries, the wheel's, and those that the wheel depends on."""
    import torch
    root = pathlib.Path(torch.__file__).parent
    version = torch.__version__.split("+")[0]
    if version != "2.11.0":
        sys.exit(f"gpu_phases: torch is {version}; the tests need 2.11.0.")
    nvidia = sorted(root.parent.glob("nvidia/*/lib"))
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([str(folder / "lib"), str(root / "lib"), *map(str, nvidia),
                     *([known] if known else [])])


def first_failure(text):
    """The lines of a log that say what went wrong."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.search(r"Failure$|: Failure|\[  FAILED  \]|[Ee]rror|what\(\)", line):
            return lines[max(0, i - 2):i + LINES_OF_A_FAILURE]
    return lines[-LINES_OF_A_FAILURE:]


def run_job(job, log, environment, deadline):
    """@return what summary.json says about the job."""
    started = time.monotonic()
    limit = min(job.seconds, deadline - started)
    with open(log, "w", encoding="utf-8") as output:
        output.write(" ".join([f"{k}={v}" for k, v in job.environment.items()] + job.command) + "\n")
        output.flush()
        try:
            with subprocess.Popen(
                    job.command, stdout=output, stderr=subprocess.STDOUT,
                    env={**environment, **job.environment},
                    start_new_session=True) as program:
                try:
                    code = program.wait(timeout=max(limit, 1))
                except subprocess.TimeoutExpired:
                    code = f"stopped after {limit:.0f} s"
                finally:
                    # Ranks that it has started would hold the device's memory.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
        except OSError as error:
            code = str(error)
    text = log.read_text(encoding="utf-8", errors="replace")
    passed = code == 0 and "no CUDA device" not in text
    if code == 0 and not passed:
        code = "skipped: no CUDA device"
    return {"passed": passed or job.is_information, "code": code,
            "seconds": round(time.monotonic() - started, 1),
            "results": [json.loads(line) for line in text.splitlines() if line.startswith('{"')],
            "failure": [] if passed else first_failure(text)}


def run_phase(phase, logs, environment, summary):
    folder = logs / phase.name
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PHASE_SECONDS
    print(f"== {phase.name}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(phase.workers) as pool:
        jobs = {pool.submit(run_job, job, folder / f"{job.name}.log", environment, deadline): job
                for job in phase.jobs}
        for done in concurrent.futures.as_completed(jobs):
            result, name = done.result(), jobs[done].name
            summary.setdefault(phase.name, {})[name] = result
            (logs / "summary.json").write_text(json.dumps(summary, indent=1))
            print(f"{'ok    ' if result['passed'] else 'FAILED'} {name}: "
                  f"{result['code']}, {result['seconds']} s", flush=True)
            for line in result["results"]:
                print("   ", json.dumps(line), flush=True)
            for line in result["failure"] if not result["passed"] else []:
                print("   |", line, flush=True)


def missing_from(folder, phase):
    """What the phase's commands name and the folder lacks."""
    missing = []
    for job in phase.jobs:
        for argument in job.command:
            if argument.startswith(str(folder)) and not pathlib.Path(argument).exists():
                missing.append(f"{job.name}: {argument}")
        file = next((a[7:] for a in job.command if a.startswith("--file=")), None)
        program = pathlib.Path(job.command[0])
        if file and program.exists() and file.encode() not in program.read_bytes():
            missing.append(f"{job.name}: {program} has no {file}")
    return missing


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("phases", nargs="*", metavar="PHASE")
    parser.add_argument("--logs", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("OUT", "gpu_logs")))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
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
        missing = []
        for phase in chosen:
            print(f"== {phase.name}, {phase.workers} at a time")
            for job in phase.jobs:
                print("  ", " ".join([f"{k}={v}" for k, v in job.environment.items()] + job.command))
            missing += missing_from(folder, phase)
        for line in missing:
            print("missing:", line, file=sys.stderr)
        return 1 if missing else 0
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path(folder),
                   "TESSERA_SOURCE_DIR": str(folder), "TORCH_SHOW_CPP_STACKTRACES": "1"}
    results = logs / "summary.json"  # of phases that ran before, too
    summary = json.loads(results.read_text()) if results.exists() else {}
    for phase in chosen:
        summary.pop(phase.name, None)
        run_phase(phase, logs, environment, summary)
    failed = [f"{phase.name}/{name}" for phase in chosen
              for name, result in summary[phase.name].items() if not result["passed"]]
    print("gpu_phases:", "failed: " + ", ".join(failed) if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rehearses what gpu_phases.py starts, on a machine without a GPU.

    gpu_rehearsal.py --build build/release [JOB ...]

Every command of the kit runs, with other values of a few keys: on the CPU, of a
small width, with the sequence and all other keys as they are, and the tests of
GPUs on the virtual device (gpu_tests_on_vdev). So a command that no program
takes, a size that does not fit another, or a test that can only skip is found
without a GPU. Commands that are then the same run once. JOB is PHASE/NAME.

Everything has to end as ok: a skip is a failure. What cannot be rehearsed stands
in NOT_REHEARSED and ONLY_ON_CUDA, with the reason.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

import gpu_phases
from gpu_kit import machine, report
from gpu_kit.jobs import Kit, Phase
from gpu_kit.running import Programs, Runner

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS = 560  # in all
# Keys of train_gpt2, in the place of a job's.
SMALL = {"device": "cpu", "layers": 2, "width": 64, "heads": 4, "vocabulary": 97,
         "batch": 1, "threads": 1, "matrix": 64}
SMALL_LLAMA = {"key_value_heads": 2, "intermediate": 96}
FEW = {"steps": 2, "warmup": 1}
# In which the loss of a small model falls by more than bfloat16's steps.
FALLING = {"steps": 98, "warmup": 2}
SMALL_BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128}
# A tenth of the tests of files with many, which run in CI anyway.
PARTS = {"engine/matrix_test.cpp": 4, "zoo/smoke_gpu_test.cpp": 4,
         "zoo/layouts_gpu_test.cpp": 4}
# Environment that nothing here reads.
ONLY_FOR_CUDA = ("CUDA_", "TORCH_CUDNN_", "TESSERA_TEST_DEVICE")
NOT_REHEARSED = {"device_of_torch": "asks PyTorch for a device"}
NOT_REHEARSED_MODULES = {"deepspeed": "DeepSpeed's ZeRO-3 needs a device"}
ONLY_ON_CUDA = {  # tests of what the virtual device has not
    "engine/cuda_training_gpu_test.cpp": {
        "CudaTraining.RunningOutOfDeviceMemoryIsReportedByPurpose":
            "a limit of its memory"},
    "engine/trainer/trainer_gpu_test.cpp": {
        "TrainerCuda.PhasesAreTimedOnTheDevice": "a speed of its own"},
    "runtime/kernels/softmax_loss_gpu_test.cpp": {
        "SoftmaxLossGpu.IsTheKernels": "kernels"},
    "runtime/comm/communicator_gpu_test.cpp": {
        "CudaCommunicator.RanksOfOneDeviceShareItsMemory":
            "memory that processes share",
        "CudaCommunicator.RanksOfOneDeviceGoThroughTheHostIfToldTo":
            "ranks that share a device"},
}


def read_by_names():
    """The files that gpu_tests.sh packs because test programs name tests after
    what is in them."""
    text = (ROOT / "scripts/gpu_tests.sh").read_text(encoding="utf-8")
    return re.search(r"^readonly read_by_names=\((.*?)\)", text, re.M | re.S)[1].split()


def unpacked(build, folder):
    """Makes `folder` look like the pack, unpacked."""
    (folder / "tests/zoo/fixtures").mkdir(parents=True)
    for name, target in (("bin", build / "bin"), ("lib", build / "lib"),
                         ("peers", ROOT / "benchmarks/peers"),
                         ("tests/zoo/fixtures/models",
                          ROOT / "tests/zoo/fixtures/models")):
        (folder / name).symlink_to(target)
    for name in read_by_names():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    # What jobs ask of it: its name, and how much memory it has.
    smi = folder / "path/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text('#!/bin/sh\ncase "$*" in\n  *-L*) echo "GPU 0: rehearsed" ;;\n'
                   "  *) echo 81559 ;;\nesac\n")
    smi.chmod(0o755)


def file_of(job):
    """The file whose tests the job runs; None if it runs none."""
    return next((one.removeprefix("--file=") for one in map(str, job.arguments)
                 if one.startswith("--file=")), None)


class RehearsedKit(Kit):
    """The jobs at a small size."""

    def smoke_models(self):
        return []  # all are there, and no list of the packed ones

    def prepare(self):
        super().prepare()
        folder = self.work / "bert_large"
        for name, changes in (("model.json", SMALL_BERT),
                              ("config.json", {"device": "cpu"})):
            path = folder / name
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def jobs(self):
        """@return the jobs, by PHASE/NAME, and what is left out: {name: reason}."""
        jobs, left_out, known = {}, {}, {}
        for phase in self.phases():
            for job in phase.jobs:
                name = f"{phase.name}/{job.name}"
                if reason := (NOT_REHEARSED.get(job.name) or
                              NOT_REHEARSED_MODULES.get(job.module)):
                    left_out[name] = reason
                    continue
                small = dataclasses.replace(
                    self.small(job), name=name.replace("/", "-"))
                same = json.dumps(
                    [small.program, small.arguments, small.keys, small.engine,
                     small.environment], sort_keys=True, default=str)
                if same in known:
                    left_out[name] = f"is then {known[same]}"
                else:
                    known[same] = name
                    jobs[name] = small
        return jobs, left_out

    def small(self, job):
        """The job on the CPU, at a small size."""
        changes = {"environment": dict(job.environment), "is_information": False,
                   "is_capped": False, "device_gib": 0, "host_gib": 0,
                   "estimate": 1, "limit": 120, "wrapper": []}
        for variable in job.environment:
            if variable.startswith(ONLY_FOR_CUDA):
                del changes["environment"][variable]
        if file := file_of(job):
            self.change_tests(job, file, changes)
        elif "train_gpt2" in " ".join([job.program, *map(str, job.arguments)]):
            few = FALLING if job.program == "python" else FEW
            changes["keys"] = self.small_keys(job.keys, {**SMALL, **few})
        elif job.program == "compare_cuda":
            changes["keys"] = self.small_keys(
                job.keys, {**SMALL, **FEW, "compiler": "aot_eager"})
            if "threads" in job.engine:
                changes["engine"] = {**job.engine, "threads": 1}
        return dataclasses.replace(job, **changes)

    @staticmethod
    def small_keys(keys, small):
        if keys.get("model") == "llama":
            small = {**small, **SMALL_LLAMA}
        if "predict" in keys:
            small = {**small, "predict": "h100"}  # not of the CPU
        return {**keys, **small}

    @staticmethod
    def change_tests(job, file, changes):
        environment = changes["environment"]
        if file.endswith("_gpu_test.cpp"):
            changes["program"] = "gpu_tests_on_vdev"
        arguments = [one for one in job.arguments if "--gtest_repeat" not in str(one)]
        if kept := ONLY_ON_CUDA.get(file):
            arguments.append("--gtest_filter=-" + ":".join(kept))
        changes["arguments"] = arguments
        if "GTEST_TOTAL_SHARDS" in environment:
            environment["GTEST_TOTAL_SHARDS"] = str(
                int(environment["GTEST_TOTAL_SHARDS"]) * PARTS.get(file, 1))


def unused_tests(kit):
    """Tests of GPUs that no job of the kit runs."""
    used = {file_of(job) for phase in kit.phases() for job in phase.jobs}
    files = (path.relative_to(ROOT / "tests").as_posix()
             for path in (ROOT / "tests").rglob("*_gpu_test.cpp"))
    return sorted(set(files) - used)


def complaint_of_prediction(job, step):
    """What is wrong with what was said beforehand of the measured step."""
    predicted = step.get("predicted", {})
    if "predict" not in job.keys:
        return f"{step['peer']} was predicted unasked" if predicted else ""
    if predicted.get("device") != job.keys["predict"]:
        return f"{step['peer']} was not predicted: {predicted}"
    if not 0 < predicted["step_ms"] <= predicted["step_in_turn_ms"] < 1e4:
        return f"{step['peer']} was predicted to take {predicted}"
    if job.engine.get("placement.optimizer") and not predicted.get("to_host_ms"):
        return f"{step['peer']} has state on the host, but no copies: {predicted}"
    return ""


def complaint_of(job, result, log):
    """What is wrong with a job that has ended; or nothing."""
    if result["outcome"] != "ok":
        return f"{result['outcome']}: {result['code']}: {report.error_of(result)}"
    text = log.read_text(encoding="utf-8", errors="replace")
    if skipped := re.search(r"^\[  SKIPPED \] (\S+)", text, re.M):
        return f"{skipped[1]} skips"
    if "--file=" in text and not re.search(r"^\[  PASSED  \] [1-9]", text, re.M):
        return "no test ran"
    if "profile" in job.keys and "kernels_ms" not in result:
        return f"no trace: {result['failure']}"
    if job.keys.get("steps"):
        steps = [one for one in result["results"] if "tokens_per_s" in one]
        if not steps:
            return "no step was measured"
        for one in steps:
            if not all(loss and math.isfinite(loss) for loss in one["losses"]):
                return f"{one['peer']} has the losses {one['losses']}"
            if complaint := complaint_of_prediction(job, one):
                return complaint
    return ""


def rehearse(kit, jobs, workers):
    """@return {name: complaint}"""
    environment = {
        **os.environ, "LD_LIBRARY_PATH": machine.library_path(kit.folder),
        "PATH": f"{kit.folder / 'path'}:{os.environ['PATH']}",
        "TESSERA_SOURCE_DIR": str(kit.folder), "OMP_NUM_THREADS": "1"}
    logs = kit.work.parent
    summary = report.Summary(logs / "summary.json")
    programs = Programs()
    programs.end_on_signals()
    runner = Runner(kit.folder, logs, environment, summary, programs)
    runner.run_phase(Phase("rehearsal", list(jobs.values()), workers),
                     time.monotonic() + SECONDS)
    results = summary.phases.get("rehearsal", {})
    complaints = {}
    for name, job in jobs.items():
        result = results.get(job.name)
        said = (complaint_of(job, result, logs / f"rehearsal/{job.name}.log")
                if result else "it did not come to its end")
        if said:
            complaints[name] = said
    return complaints


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--logs", type=pathlib.Path,
                        help="keeps logs there (default: a temporary folder)")
    parser.add_argument("jobs", nargs="*", metavar="JOB",
                        help="PHASE/NAME (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu_rehearsal.") as temporary:
        temporary = pathlib.Path(temporary)
        logs = options.logs.resolve() if options.logs else temporary / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        unpacked(options.build.resolve(), temporary / "pack")
        kit = RehearsedKit(temporary / "pack", logs)
        kit.prepare()
        jobs, left_out = kit.jobs()
        if unknown := set(options.jobs) - set(jobs):
            sys.exit(f"gpu_rehearsal: there is no job {sorted(unknown)[0]}")
        for name, reason in left_out.items():
            print(f"not rehearsed {name}: {reason}")
        if options.jobs:
            jobs = {name: jobs[name] for name in options.jobs}
        complaints = rehearse(kit, jobs, options.workers)
        unused = unused_tests(kit)
        # The pack has few of the files that tests read.
        unlisted = gpu_phases.missing_tests(kit.folder, kit.phases())
        for name, said in complaints.items():
            print(f"gpu_rehearsal: {name}: {said}")
            log = logs / f"rehearsal/{jobs[name].name}.log"
            if log.exists():
                print("\n".join(
                    f"    | {line}" for line in
                    log.read_text(errors="replace").splitlines()[-40:]))
    for file in unused:
        print(f"gpu_rehearsal: no job of gpu_kit/jobs.py runs tests/{file}")
    for line in unlisted:
        print(f"gpu_rehearsal: {line}")
    print(f"gpu_rehearsal: {len(jobs) - len(complaints)} of {len(jobs)} commands end well")
    sys.exit(1 if complaints or unused or unlisted else 0)


if __name__ == "__main__":
    main()

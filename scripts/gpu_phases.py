#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what scripts/gpu_tests.sh packed, on a machine with a GPU.

    gpu_phases.py run FOLDER [PHASE ...]        these phases, or all
    gpu_phases.py quarter FOLDER --budget S     what fits into S seconds
    gpu_phases.py again FOLDER --budget S       what failed, to find out why
    gpu_phases.py dry-run FOLDER [PHASE ...]    the commands, and what they lack
    gpu_phases.py list FOLDER                   the phases

FOLDER holds bin/, lib/, peers/, site/ (DeepSpeed) and tests/. Phases and their
jobs stand in the order of their value (gpu_kit/jobs.py). The programs of a phase
run beside each other, unless their times are the result.

quarter is for a machine that is lent for a quarter of an hour: a job starts only
if it would end in time, by its estimate, and when a gate (the machine, the
kernels, the losses of 124M parameters) fails, it stops at once, because most of
the time is then left for a mended run. run does so too, but has no budget; a phase
takes at most 8 minutes.

again reads the summary of what ran before (--summary, else the last one here)
and runs what failed with CUDA_LAUNCH_BLOCKING=1 and, where there is
compute-sanitizer, under its memcheck. If nothing failed, it goes on to 13B or
7B parameters, as the free memory of the host allows.

A job's outcome is ok, failed, skipped (a peer that is not installed), noted (a
peer's failure) or not started (no time, or no memory); failed makes the exit code
1, and in a run without a budget not started does too. OUT gets two files:
summary.json, rewritten after each job, and logs.tar.xz, at most 16 MiB, at the
end. Logs and other files are in a temporary folder until then. The last thing
printed is a table of at most 8000 characters. SIGINT, SIGTERM and SIGHUP end the
programs that run and then, after the table and the archive, this one, with 128 +
the signal's number.

dry-run starts none of the jobs: it checks that FOLDER has the programs, scripts,
fixtures and shared libraries, that test programs name the tests of their files,
and that this Python has torch. What is missing is named, and makes the exit code
1.
"""
import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from gpu_kit import machine, report
from gpu_kit.jobs import CAP_GIB, Kit, Phase
from gpu_kit.running import Programs, Runner, import_command, line_of

PHASE_SECONDS = 480
# Of a budget: to end what runs, and to write the table and the archive.
ARCHIVE_SECONDS = 15
BLOCKING = 2  # times a job's estimate, where each launch is waited for
MEMCHECK = 5


def missing_from(folder, phase):
    """What the phase's commands name or read, and the folder lacks."""
    missing = {}  # by what is missing, for jobs share programs
    for job in phase.jobs:
        words = job.words(folder)
        named = [word for word in words if word.startswith(str(folder))]
        for path in [*named, *job.needs]:
            if not pathlib.Path(path).exists():
                missing.setdefault(str(path), job.name)
    return [f"{job}: {lacks}" for lacks, job in missing.items()]


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
            lines.add(report.last_line(done.stdout + done.stderr))
        for line in lines:
            missing.setdefault(line, []).append(file.name)
    return [f"{line}, for {', '.join(names)}" for line, names in missing.items()]


def environment_of(folder):
    """That of the programs."""
    return {**os.environ, "LD_LIBRARY_PATH": machine.library_path(folder),
            "TESSERA_SOURCE_DIR": str(folder), "TORCH_SHOW_CPP_STACKTRACES": "1"}


def missing_tests(folder, phases):
    """The test files whose tests their programs do not name."""
    environment = environment_of(folder)
    missing = []
    asked = {tuple(job.words(folder)[:2]) for phase in phases for job in phase.jobs
             if any(word.startswith("--file=") for word in job.arguments)}
    for words in sorted(asked):
        if pathlib.Path(words[0]).exists():
            done = subprocess.run([*words, "--gtest_list_tests"], env=environment,
                                  capture_output=True, text=True)
            if done.returncode != 0:
                missing.append(f"{' '.join(words)} ends with {done.returncode}: "
                               f"{report.last_line(done.stdout + done.stderr)}")
    return missing


def dry_run(folder, phases):
    """@return exit code."""
    missing = []
    for phase in phases:
        print(f"== {phase.name}, {phase.workers} at a time")
        for job in phase.jobs:
            print("  ", line_of(job.words(folder), job.environment)
                  + f" (within {CAP_GIB} GiB of the device)" * job.is_capped)
            if job.module:
                done = subprocess.run(
                    import_command(job.module),
                    env={**os.environ, **job.environment},
                    capture_output=True, text=True)
                if done.returncode != 0:
                    print(f"   would be skipped: {report.not_imported(job, done.stderr)}")
        missing += missing_from(folder, phase)
    try:
        missing += missing_libraries(folder, machine.library_path(folder))
        missing += missing_tests(folder, phases)
    except (OSError, machine.Lacking) as error:
        missing.append(str(error))
    for line in missing:
        print("missing:", line, file=sys.stderr)
    return 1 if missing else 0


def again_phases(kit, summary):
    """What follows on the summary of a run before."""
    jobs = {f"{phase.name}/{job.name}": job
            for phase in kit.phases() for job in phase.jobs}
    failed = [dataclasses.replace(jobs[name], name=name.replace("/", "-"))
              for name, _ in summary.named("failed")
              if name in jobs and jobs[name].program != "sh"]
    if not failed:
        return larger_models(kit)
    phases = [Phase("again_blocking", [
        dataclasses.replace(
            job, environment={**job.environment, "CUDA_LAUNCH_BLOCKING": "1"},
            estimate=BLOCKING * job.estimate)
        for job in failed])]
    if checker := machine.memcheck():
        phases.append(Phase("again_memcheck", [
            dataclasses.replace(job, wrapper=checker, estimate=MEMCHECK * job.estimate)
            for job in failed]))
    return phases


def larger_models(kit):
    """13B parameters first, where the host has the memory."""
    phases = {phase.name: phase for phase in kit.phases()}
    large, small = phases["gpt_13b"], phases["offload_7b"]
    is_large = machine.host_gib() >= max(job.host_gib for job in large.jobs)
    return [large, small] if is_large else [small, large]


def run_phases(runner, phases, ends):
    """Runs phases until a signal comes, or a gate fails.
    @param ends when the time is over; None: each phase has its own.
    @return why it stopped before the end; or nothing."""
    for phase in phases:
        phase_ends = ends or time.monotonic() + PHASE_SECONDS
        is_passed = runner.run_phase(phase, phase_ends)
        if runner.programs.signal:
            return f"stopped by {runner.programs.signal.name}"
        if phase.is_gate and not is_passed:
            name, result = next(
                (name, one) for name, one in runner.summary.named("failed", "not started")
                if name.startswith(f"{phase.name}/"))
            return report.short(
                f"the gate {phase.name} failed, so that nothing else was started: "
                f"{report.told(name, result)}", 400)
    return ""


def conclude(summary, title, stopped, logs, out, ends):
    """Writes the archive and prints the table."""
    summary.write()
    left_out = report.archive(logs, out / "logs.tar.xz", ends)
    counts = {}
    for jobs in summary.phases.values():
        for result in jobs.values():
            counts[result["outcome"]] = counts.get(result["outcome"], 0) + 1
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    head = [f"gpu_phases: {title}: {found or 'nothing ran'}"]
    if stopped:
        head.append(f"gpu_phases: {stopped}")
    if left_out:
        head.append(report.short(
            f"gpu_phases: logs.tar.xz is without {', '.join(left_out)}", 300))
    report.say(report.table(summary, head))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "quarter", "again", "dry-run", "list"])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER",
                        help="what was packed, unpacked")
    parser.add_argument("phases", nargs="*", metavar="PHASE",
                        help="what to run (default: all)")
    parser.add_argument("--budget", type=float, metavar="SECONDS",
                        help="after how long all has ended")
    parser.add_argument("--spent", type=float, default=0, metavar="SECONDS",
                        help="what of the budget was spent on unpacking")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("OUT", "gpu_logs")),
                        help="where summary.json and logs.tar.xz go"
                        " (default: $OUT, or gpu_logs)")
    parser.add_argument("--logs", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir(), "tessera_gpu_logs"),
                        help="where the logs are kept (default: %(default)s)")
    parser.add_argument("--summary", type=pathlib.Path,
                        help="again: the summary.json of the run before"
                        " (default: the one in LOGS)")
    options = parser.parse_intermixed_args()
    if options.command in ("quarter", "again") and options.budget is None:
        parser.error(f"{options.command} needs --budget SECONDS")
    return options


def main():
    started = time.monotonic()
    options = parse()
    started -= options.spent
    folder, logs, out = (
        path.resolve() for path in (options.folder, options.logs, options.out))
    kit = Kit(folder, logs)
    known = {phase.name: phase for phase in kit.phases()}
    if options.command == "list":
        print("\n".join(known))
        return 0
    if unknown := [name for name in options.phases if name not in known]:
        sys.exit(f"gpu_phases: there is no phase '{unknown[0]}'; there are: {', '.join(known)}.")
    chosen = [known[name] for name in options.phases or known]
    if options.command == "quarter":
        shutil.rmtree(logs, ignore_errors=True)  # of a run before
    kit.prepare()
    if options.command == "dry-run":
        return dry_run(folder, chosen)
    try:
        environment = environment_of(folder)
    except machine.Lacking as error:
        sys.exit(f"gpu_phases: {error}")
    out.mkdir(parents=True, exist_ok=True)
    summary = report.Summary(logs / "summary.json", out / "summary.json")
    before = options.summary or summary.files[0]
    if options.command != "quarter" and before.exists():
        summary.read(before)
    elif options.command == "again":
        sys.exit(f"gpu_phases: there is no {before}; --summary names that of the "
                 "run before.")
    if options.command == "again" and not options.phases:
        chosen = again_phases(kit, summary)
    for phase in chosen:
        summary.phases.pop(phase.name, None)
    programs = Programs()
    programs.end_on_signals()
    runner = Runner(folder, logs, environment, summary, programs)
    ends = None
    if options.budget is not None:
        ends = started + options.budget - ARCHIVE_SECONDS
    stopped = run_phases(runner, chosen, ends)
    took = f"{time.monotonic() - started:.0f} s"
    if options.budget is not None:
        took += f" of {options.budget:.0f} s"
    conclude(summary, f"{options.command}, {took}", stopped, logs, out,
             (ends or time.monotonic()) + ARCHIVE_SECONDS / 2)
    if programs.signal:
        return 128 + programs.signal
    ran = [result["outcome"] for phase in chosen
           for result in summary.phases.get(phase.name, {}).values()]
    bad = {"failed"} if options.budget is not None else {"failed", "not started"}
    return 1 if stopped or bad & set(ran) else 0


if __name__ == "__main__":
    sys.exit(main())

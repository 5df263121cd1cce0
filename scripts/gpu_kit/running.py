# SPDX-License-Identifier: Apache-2.0
"""Programs that run beside each other, each with a log and a limit of time."""
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from gpu_kit import machine, profile, report
from gpu_kit.jobs import CAP_GIB

GRACE_SECONDS = 8  # for the programs of a gate, after one of them failed


def line_of(words, environment):
    return " ".join([*(f"{k}={v}" for k, v in environment.items()), *words]).replace("\n", " ")


def import_command(module):
    return [sys.executable, "-c", f"import {module}"]


def kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class Programs:
    """Those that run. Each has a session of its own, which no signal of the
    terminal reaches: they are ended here."""

    def __init__(self):
        self.groups = set()
        self.signal = None  # that ended them
        self.reason = ""  # why they were ended, and no other is to start

    def end_on_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores some, as do shells for what is in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.end_by)

    def end_by(self, number, _frame):
        self.signal = signal.Signals(number)
        self.end(f"stopped by {self.signal.name}")

    def end(self, reason):
        self.reason = reason
        for group in list(self.groups):
            kill_group(group)

    def run(self, command, output, environment, seconds):
        """@return the exit code, or why there is none."""
        with subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True) as program:
            self.groups.add(program.pid)
            try:
                if self.reason:  # it came before the group was known
                    kill_group(program.pid)
                code = program.wait(timeout=max(seconds, 1))
            except subprocess.TimeoutExpired:
                code = f"stopped after {seconds:.0f} s"
            finally:
                # Ranks that it has started would hold the device's memory.
                kill_group(program.pid)
                self.groups.remove(program.pid)
        if self.reason and code == -signal.SIGKILL:
            return self.reason
        return code


class Runner:
    """Runs phases of a kit until `ends`, a time of time.monotonic()."""

    def __init__(self, folder, logs, environment, summary, programs):
        self.folder = folder
        self.logs = logs
        self.environment = environment
        self.summary = summary  # a report.Summary
        self.programs = programs

    def run_phase(self, phase, ends):
        """@return whether all of its jobs came to their end without a failure."""
        folder = self.logs / phase.name
        folder.mkdir(parents=True, exist_ok=True)
        report.say(f"== {phase.name}")
        results = {}
        grace = None
        with concurrent.futures.ThreadPoolExecutor(phase.workers) as pool:
            jobs = {pool.submit(self.run_job, job, folder / f"{job.name}.log",
                                ends): job
                    for job in phase.jobs}
            while jobs:
                # A signal that comes as a wait begins does not end it, and its
                # handler runs after it.
                done, _ = concurrent.futures.wait(
                    jobs, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in [one for one in jobs if one in done]:
                    job, result = jobs.pop(future), future.result()
                    if result is None:
                        continue
                    results[job.name] = result
                    self.summary.add(phase.name, job.name, result)
                    report.show(job.name, result)
                    if phase.is_gate and result["outcome"] == "failed" and not grace:
                        grace = threading.Timer(GRACE_SECONDS, self.programs.end, [
                            f"stopped, because {phase.name}/{job.name} failed"])
                        grace.start()
        if grace:
            grace.cancel()
        return len(results) == len(phase.jobs) and all(
            one["outcome"] not in ("failed", "not started") for one in results.values())

    def run_job(self, job, log, ends):
        """@return what summary.json says about the job; None if a signal came
        before it."""
        if self.programs.reason:
            return None
        if reason := self.why_not(job, ends):
            return {"outcome": "not started", "code": reason,
                    "estimate": job.estimate, "seconds": 0, "results": [],
                    "failure": []}
        started = time.monotonic()
        is_skipped = False
        with open(log, "w", encoding="utf-8") as output:
            try:
                code, is_skipped = self.start(job, output, ends)
            except (OSError, machine.Lacking) as error:
                code = str(error)
        # Its first line is the command.
        text = log.read_text(encoding="utf-8", errors="replace").partition("\n")[2]
        if is_skipped:
            outcome, code = "skipped", report.not_imported(job, text)
        elif code == 0 and "no CUDA device" in text:
            outcome, code = "failed", "tests skip: no CUDA device"
        elif code == 0:
            outcome = "ok"
        else:
            outcome = "noted" if job.is_information else "failed"
        is_told = outcome in ("failed", "noted")
        result = {"outcome": outcome, "code": code, "estimate": job.estimate,
                  "seconds": round(time.monotonic() - started, 1),
                  "results": report.results_in(text),
                  "failure": report.first_failure(text) if is_told else []}
        if outcome == "ok" and "profile" in job.keys:
            try:
                result["kernels_ms"] = profile.kernel_ms(
                    pathlib.Path(job.keys["profile"]), job.keys["steps"])
            except (OSError, ValueError, KeyError) as error:  # no trace, or no JSON
                result["failure"] = [f"its trace cannot be read: {error!r}"]
        return result

    def why_not(self, job, ends):
        """Why the job can not be started; or nothing."""
        left = ends - time.monotonic()
        if job.estimate > left:
            return f"takes {job.estimate:.0f} s, {max(left, 0):.0f} s are left"
        try:
            for name, needed, found in [
                    ("device", job.device_gib, machine.device_gib),
                    ("host", job.host_gib, machine.host_gib)]:
                if needed and found() < needed:
                    return (f"needs {needed:.0f} GiB of the {name}'s memory, "
                            f"there are {found():.0f}")
        except machine.Lacking as error:
            return str(error)
        return ""

    def start(self, job, output, ends):
        """@return the exit code, or what there is in its place; whether the job
        is skipped."""
        added = dict(job.environment)
        if job.is_capped:
            fraction = min(1.0, CAP_GIB / machine.device_gib())
            added["PYTORCH_CUDA_ALLOC_CONF"] = (
                f"per_process_memory_fraction:{fraction:.4f}")
        words = job.words(self.folder)
        output.write(line_of(words, added) + "\n")
        output.flush()
        environment = {**self.environment, **added}
        ends = min(ends, time.monotonic() + job.seconds())
        if job.module:
            code = self.programs.run(import_command(job.module), output,
                                     environment, ends - time.monotonic())
            if code != 0:
                return code, not self.programs.reason
        return self.programs.run(words, output, environment,
                                 ends - time.monotonic()), False

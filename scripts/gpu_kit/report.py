# SPDX-License-Identifier: Apache-2.0
"""What is told of jobs: lines as they end, summary.json, one table, one archive
of their logs."""
import io
import json
import math
import os
import re
import tarfile
import time

from gpu_kit import profile

LINES_OF_A_FAILURE = 25
# What comes back from a machine that is only lent.
TABLE_CHARACTERS = 8000
ARCHIVE_BYTES = 16 << 20
LOG_BYTES = 1 << 20  # of a log, from its beginning and from its end
TRACE_BYTES = 96 << 20  # JSON; a twentieth of it in the archive
SIGNS = re.compile(
    r"Failure$|: Failure|\[  FAILED  \]|[Ee]rror|what\(\)|^=+ Invalid")


def say(line):
    try:
        print(line, flush=True)
    except OSError:
        # The terminal has hung up. Later lines must not fail for that, for the
        # summary comes after them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def show(name, result):
    """Says that a job has ended. Those that were not started are in the table."""
    outcome = result["outcome"]
    if outcome != "not started":
        say(short(f"{'FAILED' if outcome == 'failed' else outcome:7} {name}: "
                  f"{result['code']}, {result['seconds']} s", 150))


def short(line, most):
    return line if len(line) <= most else line[:most - 3] + "..."


def last_line(text):
    return (text.strip().splitlines() or ["no reason given"])[-1]


def not_imported(job, output):
    return f"{job.module} cannot be imported: {last_line(output)}"


def results_in(text):
    """The lines of JSON in a log."""
    results = []
    for line in text.splitlines():
        if line.startswith('{"'):
            try:
                results.append(json.loads(line))
            except ValueError:
                pass  # cut off, with the program
    return results


def first_failure(text):
    """The lines of a log that say what went wrong."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if SIGNS.search(line):
            return lines[max(0, i - 2):i + LINES_OF_A_FAILURE]
    return lines[-LINES_OF_A_FAILURE:]


def error_of(result):
    """A job's failure in a line."""
    lines = [line.strip() for line in result["failure"] if line.strip()]
    for i, line in enumerate(lines):
        if SIGNS.search(line):
            # "FILE:LINE: Failure" is followed by what failed.
            return " ".join(lines[i:i + 2] if line.endswith("Failure") else [line])
    return lines[-1] if lines else ""


def told(name, result):
    """What there is to say of a job that did not end well."""
    return ": ".join(text for text in (name, str(result["code"]), error_of(result)) if text)


def write_whole(path, data):
    """Replaces a file at once, so that no one finds a part of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


class Summary:
    """The results {phase: {job: result}}, kept in files."""

    def __init__(self, *files):
        self.files = files
        self.phases = {}

    def read(self, file):
        self.phases = json.loads(file.read_text(encoding="utf-8"))

    def add(self, phase, job, result):
        self.phases.setdefault(phase, {})[job] = result
        self.write()

    def write(self):
        data = json.dumps(self.phases, indent=1).encode()
        for file in self.files:
            write_whole(file, data)

    def named(self, *outcomes):
        """[("PHASE/JOB", result)] of the jobs with one of the outcomes."""
        return [(f"{phase}/{job}", result)
                for phase, jobs in self.phases.items()
                for job, result in jobs.items() if result["outcome"] in outcomes]


def speed_lines(summary):
    """A line for each program that told of its steps, under what is common."""
    head, lines = {}, []
    for phase, jobs in summary.phases.items():
        first = {}  # by size: milliseconds of Tessera's first step
        for job, result in jobs.items():
            for line in result["results"]:
                if "tokens_per_s" not in line:
                    continue
                lines.append(speed_line(f"{phase}/{job}", line, first))
                if result.get("kernels_ms"):
                    lines.append(short(profile.kinds_line(
                        f"{phase}/{job}", result["kernels_ms"],
                        line.get("predicted", {}).get("operators_ms", {})), 500))
                if "mfu" in line:
                    head[f"MFU = {line.get('mfu_formula')}, "
                         f"{line.get('peak_tflops', 0):.0f} TFLOP/s"] = None
    return [*head, *lines]


def speed_line(name, line, first):
    """@param first is added to."""
    text = (f"{name} {line.get('peer', '')}: {line.get('step_ms', 0):.1f} ms, "
            f"{line['tokens_per_s']:.0f} tokens/s")
    if predicted := line.get("predicted"):
        text += (f", predicted {predicted['step_ms']:.1f} to "
                 f"{predicted['step_in_turn_ms']:.1f} ms ({predicted['device']})")
    if "mfu" in line:
        text += f", MFU {100 * line['mfu']:.1f} %"
    if "of_matrix_rate" in line:
        text += (f", {100 * line['of_matrix_rate']:.1f} % of the "
                 f"{line.get('matrix_tflops', 0):.0f} TFLOP/s that products of "
                 "matrices reach here")
    text += (f", {line.get('peak_device_mib', 0):.0f} MiB, loss "
             f"{line.get('first_loss') or math.nan:.4g} to "
             f"{line.get('last_loss') or math.nan:.4g}")
    size = line.get("parameters"), name.split("/")[-1].split("_")[0]
    if line.get("peer") == "tessera" and size not in first:
        first[size] = line.get("step_ms", 0)
    elif first.get(size):
        text += f", {line.get('step_ms', 0) / first[size]:.2f} x Tessera's time"
    return short(text, 240)


def table(summary, head):
    """At most TABLE_CHARACTERS: head, speed, failures, and what has not run.
    Speed comes first, for it is what a card is borrowed for."""
    lines = [*head, *speed_lines(summary)]
    for word, outcome in (("FAILED", "failed"), ("noted", "noted"), ("skipped", "skipped")):
        for name, result in summary.named(outcome):
            lines.append(short(f"{word} {told(name, result)}", 240))
    waiting = {}  # by phase and by what there is
    for name, result in summary.named("not started"):
        phase, job = name.split("/", 1)
        needed, _, found = result["code"].partition(", ")
        waiting.setdefault((phase, found), []).append(f"{job} {needed}")
    for (phase, found), jobs in waiting.items():
        lines.append(short(f"not started {phase}: {found}: {', '.join(jobs)}", 240))
    lines = [line.replace("\n", " ") for line in lines]
    if len("\n".join(lines)) > TABLE_CHARACTERS:
        rest = "... the rest is in summary.json"
        while len("\n".join([*lines, rest])) > TABLE_CHARACTERS:
            lines.pop()
        lines.append(rest)
    return "\n".join(lines)


def ends_of(file, most):
    """A file's bytes; of a longer one its beginning and its end."""
    size = file.stat().st_size
    with open(file, "rb") as data:
        if size <= 2 * most:
            return data.read()
        first = data.read(most)
        data.seek(size - most)
        return (first + f"\n... {size - 2 * most} bytes left out ...\n".encode()
                + data.read())


def packed(logs, files, ends):
    """@return a .tar.xz of those of `files` that come before `ends`, and the
    others."""
    late = []
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz", preset=1) as result:
        for file in files:
            if time.monotonic() > ends:
                late.append(file)
                continue
            content = (ends_of(file, LOG_BYTES) if file.suffix == ".log"
                       else file.read_bytes())
            entry = tarfile.TarInfo(str(file.relative_to(logs)))
            entry.size = len(content)
            entry.mtime = int(file.stat().st_mtime)
            result.addfile(entry, io.BytesIO(content))
    return data.getvalue(), late


def archive(logs, target, ends):
    """Writes the logs and traces of `logs` into `target`, a .tar.xz of at most
    ARCHIVE_BYTES, the small ones first; those that come after `ends` or do not
    fit are left out.
    @return the names of these."""
    traces = [file for file in logs.glob("work/*.json")
              if file.stat().st_size <= TRACE_BYTES]
    files = sorted([*logs.glob("*/*.log"), *traces],
                   key=lambda file: file.stat().st_size)
    left_out = [file for file in logs.glob("work/*.json") if file not in traces]
    data, late = packed(logs, files, ends)
    while len(data) > ARCHIVE_BYTES:
        left_out.append(files.pop())
        data, late = packed(logs, files, ends)
    write_whole(target, data)
    return [str(file.relative_to(logs)) for file in left_out + late]

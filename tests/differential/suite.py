# SPDX-License-Identifier: Apache-2.0
"""What the suites have in common: cases made from a seed, the program that is
tested, and answers of the reference package."""
import hashlib
import json
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
ZOO_FIXTURES = PROJECT / "tests/zoo/fixtures"


def run_program(program, *arguments):
    """(its output, "") or (None, the last line of its errors)."""
    done = subprocess.run(
        [str(part) for part in (program, *arguments)], capture_output=True,
        text=True, encoding="utf-8", errors="replace")
    if done.returncode == 0:
        return done.stdout, ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None, lines[-1] if lines else f"exit code {done.returncode}"


def digest(case):
    text = json.dumps(case, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_json_lines(path, rows):
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        encoding="utf-8")


class Suite:
    """Cases are JSON values. `needs` are the packages of the reference, the
    first of which gives answers their version."""

    name = ""
    needs = ()

    def cases(self, random, count):
        raise NotImplementedError

    def write(self, case, folder):
        """Writes the folder that both sides read."""

    def versions(self, case):
        """Major versions of the reference that a case follows; empty: any."""
        return ()


class RecordedSuite(Suite):
    """The reference gives answers, JSON values, that can be recorded."""

    def expected(self, case, folder):
        raise NotImplementedError

    def actual(self, case, folder, program):
        raise NotImplementedError

    def difference(self, case, expected, actual):
        """A text that describes it; empty: there is none."""
        raise NotImplementedError

    def differences(self, case, answers, actual):
        """Lines that describe them.
        @param answers by version, of which any counts."""
        found = [f"{version}: {self.difference(case, expected, actual)}"
                 for version, expected in answers.items()]
        return [] if any(line.endswith(": ") for line in found) else found


class LiveSuite(Suite):
    """The reference reads what the program has made, or the other way round."""

    def differences(self, case, folder, program):
        """Lines that describe them."""
        raise NotImplementedError

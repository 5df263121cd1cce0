#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Tessera with the libraries whose files it reads and writes, on cases
made from a seed.

    run.py SUITE --program build/release/bin/tessera [--cases N] [--seed S]

Without --cases the number is that of CI. The references are those of this
Python and of each --python, such as environments with other versions of
transformers; TESSERA_REFERENCES may name them too, separated by ':'. Of CI's
cases fixtures/SUITE.json has recorded answers, which count where a reference is
not installed; --record writes it. --only DIGEST runs one case, --keep FOLDER
leaves its files there.
"""
import argparse
import importlib
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import suite as suites

FOLDER = Path(__file__).resolve().parent
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
CI_CASES = {"tokenizers": 48, "chats": 32, "generation": 24, "adapters": 12,
            "exports": 12, "hub": 8}
CI_SEED = 1
FULL = 25
MOST_OF_A_DIFFERENCE = 4000  # characters


def load(name):
    return importlib.import_module(f"{name}_suite").SUITE


def missing_packages(suite):
    return [name for name in suite.needs
            if importlib.util.find_spec(name) is None]


def ask(suite):
    """Answers the cases of standard input, as lines of JSON; in a process of its
    own, because the references print."""
    cases = json.load(sys.stdin)
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    missing = missing_packages(suite)
    if missing:
        print(json.dumps({"missing": missing}), file=output)
        return
    version = importlib.metadata.version(suite.needs[0])
    print(json.dumps({"version": version}), file=output)
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                suite.write(case, Path(folder))
                answer = suite.expected(case, Path(folder))
            except Exception as error:  # of whatever kind: a refusal
                answer = {"refused": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer, ensure_ascii=False), file=output)
    output.flush()


def asked(python, suite, cases):
    """(version, answers by digest) of an interpreter's reference, or none."""
    done = subprocess.run(
        [python, __file__, suite.name, "--ask"], input=json.dumps(cases),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines or len(lines) < len(cases) + 1 and "version" in lines[0]:
        sys.exit(f"{python} did not answer:\n{done.stderr[-3000:]}")
    if "missing" in lines[0]:
        print(f"{suite.name}: not asked: {python} has no "
              f"{', '.join(lines[0]['missing'])}; recorded answers count")
        return None
    return lines[0]["version"], {
        suites.digest(case): answer for case, answer in zip(cases, lines[1:])}


def compare_recorded(suite, cases, arguments):
    path = FOLDER / "fixtures" / f"{suite.name}.json"
    answers = json.loads(path.read_text()) if path.exists() else {}
    live = [found for found in (
        asked(python, suite, cases) for python in arguments.python) if found]
    if arguments.record:
        answers.update(live)
        path.write_text(json.dumps(
            answers, ensure_ascii=False, separators=(",", ":")) + "\n")
    for version, found in live:
        known = answers.setdefault(version, {})
        # Some are refused only because an optional package is not there.
        known.update({key: answer for key, answer in found.items()
                      if key not in known or "refused" not in answer})

    refused = [case for case in cases if all(
        "refused" in found.get(suites.digest(case), ["refused"])
        for found in answers.values())]
    if refused:
        print(f"{suite.name}: {len(refused)} cases are refused by the reference")

    def one(case):
        follows = suite.versions(case)
        key = suites.digest(case)
        given = {version: found[key] for version, found in answers.items()
                 if key in found
                 and (not follows or version.split(".")[0] in follows)}
        if not given:
            return None
        with tempfile.TemporaryDirectory() as folder:
            folder = keep_in(arguments, folder)
            suite.write(case, folder)
            actual = suite.actual(case, folder, arguments.program)
        return suite.differences(case, given, actual)

    return each(one, cases)


def compare_live(suite, cases, arguments):
    def one(case):
        with tempfile.TemporaryDirectory() as folder:
            folder = keep_in(arguments, folder)
            try:
                suite.write(case, folder)
                return suite.differences(case, folder, arguments.program)
            except Exception:
                return ["".join(traceback.format_exc(limit=-3))]

    return [one(case) for case in cases]


def keep_in(arguments, folder):
    folder = Path(arguments.keep or folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def each(function, cases):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, cases))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=CI_CASES)
    parser.add_argument("--program", type=Path, help="the command tessera")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--full", action="store_true",
                        help=f"{FULL} times as many cases, of another seed")
    parser.add_argument("--seed", type=int, default=CI_SEED)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--keep")
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    suite = load(arguments.suite)
    if arguments.ask:
        return ask(suite)
    others = os.environ.get("TESSERA_REFERENCES", "")
    arguments.python = [sys.executable, *arguments.python, *filter(
        None, others.split(":"))]
    count = arguments.cases or CI_CASES[suite.name]
    if arguments.full:
        count, arguments.seed = FULL * count, CI_SEED + 1
    output, error = suites.run_program(arguments.program, "--help")
    if output is None:
        sys.exit(f"{arguments.program} does not start: {error}")
    is_live = isinstance(suite, suites.LiveSuite)
    missing = missing_packages(suite)
    if is_live and missing:
        print(f"{suite.name}: not compared: {sys.executable} has no "
              f"{', '.join(missing)}")
        return 0
    cases = suite.cases(random.Random(arguments.seed), count)
    if arguments.only:
        cases = [case for case in cases
                 if suites.digest(case).startswith(arguments.only)]
    compare = compare_live if is_live else compare_recorded
    results = compare(suite, cases, arguments)
    wrong = 0
    for case, result in zip(cases, results):
        if result:
            wrong += 1
            print(f"--- {suite.name} {suites.digest(case)} "
                  f"{json.dumps(case, ensure_ascii=False)[:1500]}")
            for line in result:
                print("  " + line[:MOST_OF_A_DIFFERENCE])
    skipped = sum(result is None for result in results)
    print(f"{suite.name}: seed {arguments.seed}, {len(cases)} cases, "
          f"{wrong} differ, {skipped} not compared")
    is_ci = arguments.seed == CI_SEED and not arguments.cases
    if is_ci and skipped:
        print("cases have no recorded answers: record them again (--record)")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

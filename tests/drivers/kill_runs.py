#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a run loses nothing that it has saved, whatever ends it.

    kill_runs.py [--build build/release] [--trials 200] [--seed 0] [--first 0]
                 [--jobs N] [--kills]

Trains a small model on one or two ranks, in a folder on a small tmpfs (disks
are not filled where it cannot be mounted), and saves it every 50 steps, or every
3 in the background. At a random point from its start to its export the run gets
SIGINT or SIGTERM, a rank, all ranks or the launcher are killed, or the disk
fills up. Then:

- the run has ended within a minute, or, with a full disk, done all its steps;
- every step that the log called saved, or a later one, is in checkpoints/, and
  `tessera export` makes a model of it;
- the losses that the log has then are those of a run that nothing disturbed,
  to the last bit;
- what a rank that could still speak wrote last says where the checkpoint is;
- the same command with training.resume=true does the remaining steps.

With --kills, all runs save every 3 of 90 steps in the background, and a rank,
all ranks or the launcher are killed between the first and the last one; what
was saved is loaded by the run that resumes, but not exported. --jobs trials run
at the same time. Exits with 1 if a trial fails.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 300
DISK_KIB = 6000
# The model is too small for threads.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# After this output, and a random time, the fault happens.
MARKS = ["", "training on", "saved step", "saved step 250", "last loss"]
FAULTS = ["SIGINT", "SIGTERM", "kill rank", "kill all ranks", "kill launcher",
          "full disk"]
BACKGROUND = ["save_in_background=true", "training.save_every=3"]
KILLS = ["kill rank", "kill all ranks", "kill launcher"]
STEPS_WITH_KILLS = 90


def write_inputs(folder: pathlib.Path, steps: int) -> None:
    tokens = [(i + i // 37) % 23 for i in range(16 * 640)]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    (folder / "gpt.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 23, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 16}))
    (folder / "train.json").write_text(json.dumps({
        "task": "language_model",
        "model": {"max_length": 16, "config": str(folder / "gpt.json")},
        "optimizer": {"lr": 1e-3},
        "training": {"batch_size": 2, "max_steps": steps, "epochs": 10,
                     "save_every": 50},
        "data": {"train": str(folder / "tokens.bin"),
                 "heldout": str(folder / "tokens.bin")},
        "output": {}}))


class Run:
    """A run of `tessera train` whose output is read as it comes."""

    def __init__(self, tessera, folder, run, ranks, words=()):
        command = [tessera, "launch", "--nproc", str(ranks), "--", tessera,
                   "train", str(folder / "train.json"), f"output.folder={run}",
                   *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT,
            cwd=ROOT, text=True)
        self.output = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.output += line

    def wait_for(self, text):
        end = time.time() + 120
        while (text not in self.output and self.process.poll() is None
               and time.time() < end):
            time.sleep(0.01)

    def ranks(self):
        return children(self.process.pid)

    def wait(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.reader.join(10)
            raise AssertionError(
                f"still running after {seconds} s\n{self.output}") from None
        self.reader.join(10)
        return code


def children(parent: int) -> list[int]:
    """The processes that a process has started and that have not been reaped."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # "pid (name) state parent ..."; the name may have any character.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def saved_steps(run: pathlib.Path) -> list[int]:
    return sorted(
        int(path.parent.name.removeprefix("step-"))
        for path in run.glob("checkpoints/step-*/manifest.json"))


def fill(disk: pathlib.Path) -> None:
    try:
        with open(disk / "filler", "wb", buffering=0) as file:
            while file.write(b"x" * 4096) == 4096:
                pass
    except OSError:
        pass


def cause(fault: str, run: Run, disk: pathlib.Path, rng) -> None:
    if fault == "full disk":
        fill(disk)
    elif fault == "kill all ranks":
        for pid in run.ranks():
            os.kill(pid, signal.SIGKILL)
    elif fault == "kill rank":
        for pid in run.ranks()[:1] if rng.random() < 0.5 else run.ranks()[-1:]:
            os.kill(pid, signal.SIGKILL)
    elif run.process.poll() is None:
        run.process.send_signal(
            signal.SIGKILL if fault == "kill launcher"
            else getattr(signal, fault))


def losses_of(run_folder: pathlib.Path) -> dict[int, float]:
    losses = {}
    for line in (run_folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        losses[values["step"]] = values["loss"]
    return losses


def last_words_needed(fault: str, ranks: int) -> bool:
    return fault in ("SIGINT", "SIGTERM", "full disk") or (
        fault == "kill rank" and ranks > 1)


def trial(tessera, folder, disk, rng, undisturbed, faults, kills) -> str:
    """One run with one fault. Returns what it did.

    Raises AssertionError if something was lost.
    """
    ranks = rng.choice([1, 2])
    fault = rng.choice(KILLS if kills else faults)
    words = BACKGROUND if kills else rng.choice([[], BACKGROUND])
    steps_of_run = STEPS_WITH_KILLS if kills else STEPS
    if kills:
        mark = rng.choice(["training on", *(
            f"saved step {step} " for step in range(3, steps_of_run, 3))])
        delay = rng.random() * 0.03
    else:
        mark = rng.choice(MARKS)
        delay = rng.random() * (1.5 if mark == "" else 0.3)
    run_folder = disk / "run"
    run = Run(tessera, folder, run_folder, ranks, words)
    run.wait_for(mark)
    time.sleep(delay)
    cause(fault, run, disk, rng)
    what = (f"{ranks} ranks, {fault} {delay:.2f} s after '{mark}'"
            f"{', in the background' if words else ''}")
    try:
        code = run.wait(60)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None
    (disk / "filler").unlink(missing_ok=True)
    told = [int(n) for n in re.findall(r"saved step (\d+) in", run.output)]
    steps = saved_steps(run_folder)
    what += f": code {code}, told {max(told, default=0)}, saved {steps}"

    def check(good, complaint):
        if not good:
            raise AssertionError(f"{what}: {complaint}\n{run.output}")

    check(max(steps, default=0) >= max(told, default=0), "a step is lost")
    if steps and not kills:
        target = disk.with_name(disk.name + "-exported")
        exported = subprocess.run(
            [tessera, "export", str(run_folder), "--to", str(target)],
            capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT,
            check=False, timeout=120)
        check(exported.returncode == 0, f"not exported: {exported.stderr}")
    if steps:
        newest = f"step-{steps[-1]:06}"
        check(not last_words_needed(fault, ranks) or newest in run.output,
              "the end does not say where the checkpoint is")
    resumed = Run(tessera, folder, run_folder, ranks,
                  [*words, "training.resume=true"])
    again = resumed.wait(120)
    check(again == 0, f"not resumed: {resumed.output}")
    check(saved_steps(run_folder)[-1] == steps_of_run
          and (run_folder / "result.json").exists()
          and (run_folder / "model" / "model.safetensors").exists(),
          f"not finished: {resumed.output}")
    check(losses_of(run_folder) == undisturbed[ranks],
          "the losses are not those of a run that nothing disturbed")
    return what


def mount(disk: pathlib.Path) -> bool:
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k",
         "tessera-kill-runs", str(disk)], check=False,
        capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path,
                        default=ROOT / "build/release")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0,
                        help="number of the first trial, to repeat one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(),
                        help="trials at the same time")
    parser.add_argument("--kills", action="store_true",
                        help="only kills, of runs that save in the background")
    arguments = parser.parse_args()
    tessera = str(arguments.build.resolve() / "bin" / "tessera")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(folder, STEPS_WITH_KILLS if arguments.kills else STEPS)
        undisturbed = {}
        for ranks in (1, 2):
            run = Run(tessera, folder, folder / f"undisturbed-{ranks}", ranks)
            if run.wait(120) != 0:
                print(run.output)
                return 1
            undisturbed[ranks] = losses_of(folder / f"undisturbed-{ranks}")

        def try_one(number: int) -> bool:
            rng = random.Random(f"{arguments.seed}/{number}")
            start = time.time()
            disk = folder / f"disk-{number}"
            disk.mkdir()
            is_mounted = mount(disk)
            faults = [one for one in FAULTS
                      if is_mounted or one != "full disk"]
            try:
                print(number, trial(tessera, folder, disk, rng, undisturbed,
                                    faults, arguments.kills),
                      f"({time.time() - start:.0f} s)", flush=True)
                return True
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(number, "FAILED:", error, flush=True)
                return False
            finally:
                if is_mounted:
                    subprocess.run(["umount", "-l", str(disk)], check=True)

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as jobs:
            results = list(jobs.map(try_one, range(
                arguments.first, arguments.first + arguments.trials)))
    failed = results.count(False)
    print(f"{failed} of {arguments.trials} trials failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

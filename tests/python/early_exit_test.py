# SPDX-License-Identifier: Apache-2.0
"""A rank that ends before the others is named, and no stack of c10d is shown.

    early_exit_test.py LAUNCHER
"""
import subprocess
import sys

GROUP = """
import sys, torch, tessera
world = tessera.init()
if world.rank == {ends}:
    sys.exit({code})
try:
    tessera.wrap(torch.nn.Linear(3, 3), log_memory=False)
except tessera.Error as error:
    print("FOUND", error)
    sys.exit(1)
"""

STEPS = """
import sys, torch, tessera
world = tessera.init()
model = torch.nn.Linear(3, 3)
engine = tessera.wrap(model, log_memory=False)
try:
    for _ in range(2 if world.rank == {ends} else 3):
        engine.backward(model(torch.ones(2, 3)).sum())
        engine.step()
except tessera.Error as error:
    print("FOUND", error)
    sys.exit(1)
sys.exit({code})
"""


def run(ranks, program, ends, code=0):
    """The output of a job of which one rank ends early."""
    job = subprocess.run(
        [sys.argv[1], "launch", "--nproc", str(ranks), "--", sys.executable,
         "-c", program.format(ends=ends, code=code)],
        capture_output=True, text=True, check=False, timeout=240)
    output = job.stdout + job.stderr
    assert job.returncode == (code or 1), output
    assert "frame #" not in output, output
    assert "c10::" not in output, output
    return output


def contains(output, *texts):
    for text in texts:
        assert text in output, f"'{text}' is not in:\n{output}"


def between_init_and_wrap():
    for ends in (1, 0):
        contains(run(3, GROUP, ends), "FOUND making the group",
                 f"rank {ends} ended early, with exit code 0; all ranks must "
                 "make the same calls" if ends else "rank 0")


def after_fewer_steps():
    output = run(2, STEPS, 1)
    contains(output, "FOUND", "rank 1 ended early, after 2 steps, with exit "
             "code 0; all ranks must run the same number of steps",
             "exited with code 1 because of another rank; rank 1 (pid ",
             "had ended early, with code 0")


if __name__ == "__main__":
    between_init_and_wrap()
    after_fewer_steps()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same steps with plain LibTorch and with Tessera, in float32, and
with Tessera in bfloat16: are the losses the same?

    loss_gate.py --program bin/train_gpt2 [key=value ...]

The limits are LIMITS: of the first losses' difference, as a fraction of the loss
(the same weights and the same batch, another order of sums), and of the last ones',
as a fraction of what the loss fell by. A step that is left out of 20, or done with
other gradients, differs by more. A loss in bfloat16 has steps of 1/16 between 8 and
16. Exits with 1 if a loss differs, does not fall or is not finite.
"""
import argparse
import json
import math
import subprocess
import sys

LIMITS = {"float32": (1e-4, 0.005), "bfloat16": (0.02, 0.2)}


def train(program, mode, dtype, keys):
    done = subprocess.run(
        [program, f"mode={mode}", f"dtype={dtype}", *keys],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    print(done.stderr, end="", flush=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode != 0 or not lines:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"Error: {mode} in {dtype} ended with {done.returncode}: {reason}")
    try:
        result = json.loads(lines[-1])
    except ValueError:
        sys.exit(f"Error: {mode} in {dtype} printed no numbers: {lines[-1]}")
    print(json.dumps({**result, "peer": f"{mode} {dtype}"}), flush=True)
    for name in ("first_loss", "last_loss"):
        if result[name] is None:
            sys.exit(f"Error: {mode} in {dtype}: {name} is not finite.")
    return result


def difference(plain, other, limits):
    """What is wrong with the losses of `other`; or nothing."""
    first, last = limits
    fall = plain["first_loss"] - plain["last_loss"]
    for name, most in (("first_loss", first * plain["first_loss"]),
                       ("last_loss", last * fall)):
        apart = abs(other[name] - plain[name])
        if not apart <= most:  # NaN too
            return (f"{name} is {other[name]:.6f}, plain LibTorch's is "
                    f"{plain[name]:.6f}: {apart:.2e} apart, {most:.2e} allowed")
    return ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_intermixed_args()
    plain = train(options.program, "plain", "float32", options.keys)
    fall = plain["first_loss"] - plain["last_loss"]
    if not (math.isfinite(fall) and fall > 0.01 * plain["first_loss"]):
        sys.exit(f"Error: plain LibTorch's loss goes from {plain['first_loss']} to "
                 f"{plain['last_loss']}.")
    for dtype, limits in LIMITS.items():
        other = train(options.program, "tessera", dtype, options.keys)
        if reason := difference(plain, other, limits):
            sys.exit(f"Error: in {dtype}, Tessera's {reason}.")


if __name__ == "__main__":
    main()

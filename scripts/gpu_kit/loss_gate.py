#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same steps with plain LibTorch and with Tessera, in float32, and
with Tessera in bfloat16: are the losses the same?

    loss_gate.py --program bin/train_gpt2 [key=value ...]

LIMITS allow a fraction of the first loss (the same weights and the same batch,
another order of sums) and one of what the loss has fallen by since. A step that is
left out of 20, or done with other gradients, differs by more. A loss in bfloat16
has steps of 1/16 between 8 and 16. Exits with 1 if a loss differs or is not finite,
or if plain LibTorch's does not fall.
"""
import argparse
import json
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
    if None in result["losses"]:
        sys.exit(f"Error: {mode} in {dtype}: the loss of step "
                 f"{result['losses'].index(None) + 1} is not finite.")
    return result["losses"]


def difference(plain, other, limits):
    """What is wrong with the losses of `other`; or nothing."""
    if len(plain) != len(other):
        return f"losses are {len(other)}, plain LibTorch's {len(plain)}"
    of_first, of_fall = limits
    for i, (expected, found) in enumerate(zip(plain, other)):
        most = of_first * plain[0] + of_fall * abs(plain[0] - expected)
        if not abs(found - expected) <= most:  # NaN too
            return (f"loss of step {i + 1} is {found:.6f}, plain LibTorch's is "
                    f"{expected:.6f}: {abs(found - expected):.2e} apart, "
                    f"{most:.2e} allowed")
    return ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_intermixed_args()
    plain = train(options.program, "plain", "float32", options.keys)
    if not plain[-1] < 0.99 * plain[0]:
        sys.exit(f"Error: plain LibTorch's loss goes from {plain[0]} to {plain[-1]}.")
    for dtype, limits in LIMITS.items():
        other = train(options.program, "tessera", dtype, options.keys)
        if reason := difference(plain, other, limits):
            sys.exit(f"Error: in {dtype}, Tessera's {reason}.")


if __name__ == "__main__":
    main()

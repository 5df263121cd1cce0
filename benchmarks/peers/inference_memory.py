#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of `tessera logits` and `generate` next to transformers.

    inference_memory.py build/release/bin/tessera [--layers 12] [--hidden 1024]

Needs torch and transformers. Makes a LLaMA with random weights, saved in
--saved, and computes in float32, as both sides do by default (transformers with
dtype=float32). Prints, for each layout, the peak resident memory of the largest
process: all of it, and the anonymous part, which leaves out the pages of files
that the kernel can drop. Ranks are started without the launcher, so that each
is measured by itself.
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYOUTS = {
    "1 rank": (1, []),
    "2 ranks, sharded": (2, []),
    "2 ranks, tensor": (2, ["--tensor", "2"]),
    "2 ranks, pipeline": (2, ["--pipeline", "2"]),
    "4 ranks, sharded": (4, []),
}

TRANSFORMERS = """
import json, sys, torch, transformers
torch.set_num_threads(1)
ids = torch.tensor(json.load(open(sys.argv[2]))["input_ids"])
model = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad():
    model(ids, use_cache=False, output_hidden_states=True)
"""


def status(pid):
    """Resident bytes of a process: all, and what is not in files."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024
             for line in text.splitlines() if line.startswith("Rss")
             or line.startswith("VmRSS")}
    return sizes.get("VmRSS", 0), sizes.get("RssAnon", 0) + sizes.get(
        "RssShmem", 0)


def peak(commands):
    """Runs processes side by side; the peaks of the largest."""
    jobs = [subprocess.Popen(command, env=os.environ | more,
                             stdout=subprocess.DEVNULL)
            for command, more in commands]
    most = [0, 0]
    while any(job.poll() is None for job in jobs):
        for job in jobs:
            most = [max(a, b) for a, b in zip(most, status(job.pid))]
        time.sleep(0.005)
    if any(job.returncode for job in jobs):
        sys.exit(f"failed: {commands[0][0]}")
    return most


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ranks(count, command):
    port = str(free_port())
    return [(command, {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}) for rank in range(count)]


def make_model(folder, options):
    # In a process of its own, whose memory is given back.
    subprocess.run([sys.executable, "-c", f"""
import torch, transformers as hf
config = hf.LlamaConfig(
    hidden_size={options.hidden}, num_hidden_layers={options.layers},
    intermediate_size={options.hidden * 11 // 4}, vocab_size=32000,
    num_attention_heads={options.hidden // 64}, pad_token_id=None)
model = hf.LlamaForCausalLM(config).to(torch.{options.saved})
print(sum(p.numel() for p in model.parameters()) / 1e6, "million parameters,",
      "{options.saved} in the file")
model.save_pretrained({str(folder)!r})
"""], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tessera")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--saved", default="bfloat16",
                        choices=["bfloat16", "float32"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        make_model(folder, options)
        ids = Path(place) / "ids.json"
        ids.write_text(json.dumps({"input_ids": [list(range(1, 33))]}))
        print(f"{'':34}{'MiB':>8}{'anonymous':>12}")

        def row(name, commands):
            all_bytes, own = peak(commands)
            print(f"{name:34}{all_bytes >> 20:8}{own >> 20:12}", flush=True)

        row("transformers", [([sys.executable, "-c", TRANSFORMERS, str(folder),
                               str(ids)], {})])
        for program, output, more in (
                ("logits", "out.safetensors", []),
                ("generate", "out.json", ["--max-new-tokens", "4"])):
            for name, (count, layout) in LAYOUTS.items():
                row(f"{program}, {name}", ranks(count, [
                    options.tessera, program, "--model", str(folder),
                    "--input", str(ids), "--output", str(Path(place) / output),
                    *more, *layout]))


if __name__ == "__main__":
    main()

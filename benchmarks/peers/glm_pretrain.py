#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss curves of GLM's pretraining next to an implementation in plain PyTorch.

    glm_pretrain.py build/release/bin/tessera [--steps 1000] [--seeds 3]

Needs torch alone, a tokenizer of BERT's kind (models/minilm of `make demo`) and
some text, by default the modules of Python's standard library. Nothing here is
shared with Tessera: the model is written down from GLM's paper (Du et al. 2022,
arXiv:2103.10360) and its authors' names of weights, token files are read by
Megatron's format, blanks are drawn by the paper's rules, AdamW is torch.optim's
with the authors' groups (biases and norms do not decay).

Trains a small twin of configs/pretrain_glm_large.json in two ways:

- on equal batches: this script packs text, draws blanks and initial weights,
  and writes both for Tessera (the task `examples`). The losses of each step
  must agree but for rounding, whose size is shown by the same in float64.
  Tessera runs on 1 rank, on 2 ranks with ZeRO-3, and in the recipe's bfloat16.
- on its own batches: each side initializes its weights, reads the token files,
  draws blanks and applies the recipe's dropout by itself. Only statistics can
  agree: smoothed curves are compared with the spread of seeds, as are losses on
  held-out text.

Runs that are found in --folder are not repeated. Prints a report and writes
--figure, an SVG.
"""
import argparse
import ctypes
import json
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "pretrain_glm_large.json"

# What is smaller than in the recipe; everything else is read from it.
LAYERS, HIDDEN, HEADS, LENGTH = 4, 128, 4, 128
ROWS, MICRO_BATCHES = 2, 2
PEAK_LR = 1e-3
DRAWS = 6 # of blanks of the held-out text
VOCAB = 30592
TOKENS = {"start": 101, "document_end": 102, "mask": 103,
          "sentence_mask": 30522, "document_mask": 30523,
          "piece_start": 30524, "piece_end": 30525}


def model_config(dropout):
    return {
        "model_type": "glm", "architectures": ["GLMForConditionalGeneration"],
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": LAYERS,
        "num_attention_heads": HEADS, "max_sequence_length": LENGTH,
        "block_position_encoding": True, "relative_encoding": False,
        "embedding_dropout_prob": dropout, "output_dropout_prob": dropout,
        "attention_dropout_prob": dropout, "layernorm_epsilon": 1e-5,
        "initializer_range": 0.02, "pad_token_id": 0}


# The model.

class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.query_key_value = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.weight_dropout = nn.Dropout(dropout)
        self.output_dropout = nn.Dropout(dropout)

    def forward(self, x, hidden_from):
        rows, length, _ = x.shape
        query, key, value = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, -1))
        scores = query @ key.transpose(-1, -2) / math.sqrt(HIDDEN / HEADS)
        weights = scores.masked_fill(hidden_from, -math.inf).softmax(-1)
        mixed = self.weight_dropout(weights) @ value
        return self.output_dropout(self.dense(
            mixed.transpose(1, 2).reshape(rows, length, HIDDEN)))


class FeedForward(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.dense_4h_to_h = nn.Linear(4 * HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        inner = F.gelu(self.dense_h_to_4h(x), approximate="tanh")
        return self.dropout(self.dense_4h_to_h(inner))


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.attention = Attention(dropout)
        self.post_attention_layernorm = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.mlp = FeedForward(dropout)

    def forward(self, x, hidden_from):
        x = x + self.attention(self.input_layernorm(x), hidden_from)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.position_embeddings = nn.Embedding(LENGTH + 1, HIDDEN)
        self.block_position_embeddings = nn.Embedding(LENGTH + 1, HIDDEN)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.final_layernorm = nn.LayerNorm(HIDDEN, eps=1e-5)

    def forward(self, x, positions, sep):
        x = self.dropout(x + self.position_embeddings(positions[:, 0])
                         + self.block_position_embeddings(positions[:, 1]))
        # All see the context, the tokens of blanks also those before them.
        place = torch.arange(x.size(1))
        hidden_from = ((place[None, :] > place[:, None])[None]
                       & (place[None, None, :] >= sep[:, None, None]))
        for layer in self.layers:
            x = layer(x, hidden_from[:, None])
        return self.final_layernorm(x)


class Glm(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.transformer = Transformer(dropout)
        for name, parameter in self.named_parameters():
            if "layernorm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
                continue
            ends_branch = ("attention.dense" in name
                           or "dense_4h_to_h" in name)
            nn.init.normal_(parameter, std=0.02 / (
                math.sqrt(2 * LAYERS) if ends_branch else 1))

    def losses(self, batch):
        """The sum over labels and their number."""
        x = self.transformer(self.word_embeddings(batch["input_ids"]),
                             batch["position_ids"], batch["sep"])
        is_label = batch["labels"] >= 0
        logits = F.linear(x[is_label], self.word_embeddings.weight)
        wanted = batch["labels"][is_label]
        return F.cross_entropy(logits, wanted, reduction="sum"), len(wanted)


# The data.

def read_token_file(prefix):
    """Documents of Megatron's format, without copies."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, kind, sequences, boundaries = struct.unpack_from(
        "<9sQBQQ", index)
    if magic != b"MMIDIDX\0\0" or version != 1 or kind not in (4, 8):
        sys.exit(f"{prefix}.idx: not an index of int32 or uint16 tokens")
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    ends = struct.unpack_from(f"<{boundaries}q", index, 34 + 12 * sequences)
    dtype = torch.int32 if kind == 4 else torch.uint16
    tokens = torch.frombuffer(
        bytearray(Path(f"{prefix}.bin").read_bytes()), dtype=dtype).tolist()
    documents, begin = [], 0
    for first, last in zip(ends, ends[1:]):
        length = sum(lengths[first:last])
        documents.append(tokens[begin:begin + length])
        begin += length
    return documents


def sentence_ends(tokenizer):
    lines = (Path(tokenizer) / "vocab.txt").read_text().split("\n")
    return {token for token, text in enumerate(lines)
            if any(mark in text for mark in ".?!;:。？！；…\n")}


class Blanks:
    """Draws blanks as GLM's paper says."""

    def __init__(self, shares, ends, rng):
        self.shares, self.ends, self.rng = shares, ends, rng
        # Each blank takes two tokens more than the text: its mask, and one
        # beside what fills it. Room for half more of them than expected.
        def most(tokens):
            expected = shares["ratio"] * tokens / shares["mean_length"]
            return math.ceil(1.5 * expected) + 2
        self.text_tokens = max(tokens for tokens in range(2, LENGTH)
                               if tokens + 1 + 2 * most(tokens) <= LENGTH)
        self.most = most(self.text_tokens)
        mean = shares["mean_length"]
        self.lengths = range(1, 40)
        self.weights = [math.exp(-mean) * mean ** n / math.factorial(n)
                        for n in self.lengths]

    def documents(self, text):
        begin = 0
        for i, token in enumerate(text + [TOKENS["document_end"]]):
            if token == TOKENS["document_end"]:
                if i > begin:
                    yield begin, i
                begin = i + 1

    def short(self, text):
        """Lengths until they have `ratio` of the text, divided over documents
        in proportion; the places within a document are uniform."""
        documents = sorted(self.documents(text), key=lambda d: d[1] - d[0])
        if not documents:
            return None
        wanted = int(self.shares["ratio"] * len(text))
        lengths = []
        while sum(lengths) < wanted:
            lengths += self.rng.choices(self.lengths, self.weights)
        if len(lengths) > self.most:
            return None
        spans = []
        for number, (begin, end) in enumerate(documents):
            is_last = number == len(documents) - 1
            own = []
            limit = (end - begin if is_last
                     else int((end - begin) * self.shares["ratio"]))
            while lengths and sum(own) + lengths[-1] + (
                    len(own) if is_last else 0) <= limit:
                own.append(lengths.pop())
            free = end - begin - sum(own) - (len(own) - 1)
            at = begin
            for place, length in zip(
                    sorted(self.rng.randint(0, free) for _ in own), own):
                spans.append((at + place, at + place + length))
                at += length + 1
        return None if lengths else sorted(spans)

    def sentences(self, text):
        found = []
        for begin, end in self.documents(text):
            for i in range(begin, end):
                if text[i] in self.ends or i + 1 == end:
                    found.append((begin, i + 1))
                    begin = i + 1
        self.rng.shuffle(found)
        taken, tokens = [], 0
        for begin, end in found[:self.most]:
            taken.append((begin, end))
            tokens += end - begin
            if tokens >= int(self.shares["ratio"] * len(text)):
                break
        return sorted(taken)

    def example(self, text):
        kinds = ["short", "sentences", "document"]
        kind = self.rng.choices(kinds, [self.shares[k] for k in kinds])[0]
        spans = None
        while not spans:
            if kind == "short":
                spans = self.short(text)
            elif kind == "sentences":
                spans = self.sentences(text)
            else:
                least = int(self.shares["least_document"] * len(text))
                length = self.rng.randint(least, len(text) - 1)
                spans = [(len(text) - length, len(text))]
        mask = TOKENS[{"short": "mask", "sentences": "sentence_mask",
                       "document": "document_mask"}[kind]]
        ids, blanks, last = [TOKENS["start"]], [], 0
        for begin, end in spans:
            ids += text[last:begin] + [mask]
            blanks.append((len(ids) - 1, text[begin:end]))
            last = end
        ids += text[last:]
        sep = len(ids)
        positions, within, labels = list(range(sep)), [0] * sep, [-100] * sep
        self.rng.shuffle(blanks)
        for place, tokens in blanks:
            # The end of a text that was cut is no end.
            targets = tokens + [TOKENS["piece_end"]] * (kind != "document")
            ids += [TOKENS["piece_start"]] + targets[:-1]
            labels += targets
            positions += [place] * len(targets)
            within += range(1, len(targets) + 1)
        padding = LENGTH - len(ids)
        return (ids + [0] * padding, labels + [-100] * padding,
                [positions + [0] * padding, within + [0] * padding], sep)


class Examples:
    """Endless examples of packed text, in another order in each epoch."""

    def __init__(self, prefix, blanks):
        self.documents = read_token_file(prefix)
        self.blanks = blanks

    def texts(self):
        tokens = []
        for document in self.blanks.rng.sample(
                self.documents, len(self.documents)):
            tokens += document
        size = self.blanks.text_tokens
        texts = [tokens[i:i + size]
                 for i in range(0, len(tokens) - size + 1, size)]
        self.blanks.rng.shuffle(texts)
        return texts

    def epochs(self):
        while True:
            yield from map(self.blanks.example, self.texts())


def batch_of(rows):
    ids, labels, positions, sep = zip(*rows)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels),
            "position_ids": torch.tensor(positions), "sep": torch.tensor(sep)}


# Files that Tessera reads, and those of it that are read.

NAMES = {torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors):
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            kept = tensor.detach().contiguous()
            file.write(ctypes.string_at(kept.data_ptr(), kept.nbytes))


def read_safetensors(path):
    raw = bytearray(Path(path).read_bytes())
    size, = struct.unpack_from("<Q", raw)
    types = {name: dtype for dtype, name in NAMES.items()}
    tensors = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(
                raw[8 + size + begin:8 + size + end],
                dtype=types[entry["dtype"]]).view(entry["shape"])
    return tensors


def saved_names(model):
    return {f"glm.{name}": p for name, p in model.named_parameters()}


def sample_order(count, seed):
    """The order in which Tessera takes the examples of a file in the first
    epoch: Fisher and Yates' shuffle by mt19937_64 (sample_order.h)."""
    bits = (1 << 64) - 1
    state = [seed & bits]
    for i in range(1, 312):
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + i)
                     & bits)
    place = 312

    def draw():
        nonlocal place
        if place == 312:
            for i in range(312):
                x = (state[i] & ~0x7fffffff) | (
                    state[(i + 1) % 312] & 0x7fffffff)
                state[i] = state[(i + 156) % 312] ^ x >> 1 ^ (
                    0xb5026f5aa96619e9 if x & 1 else 0)
            place = 0
        x = state[place]
        place += 1
        x ^= x >> 29 & 0x5555555555555555
        x ^= x << 17 & 0x71d67fffeda60000 & bits
        x ^= x << 37 & 0xfff7eee000000000 & bits
        return x ^ x >> 43

    order = list(range(count))
    for i in range(count - 1, 0, -1):
        other = draw() % (i + 1)
        order[i], order[other] = order[other], order[i]
    return order


def clip(parameters, most):
    # torch.nn.utils.clip_grad_norm_ sums squares in float32, with relative
    # errors of 2e-4 for the gradient of the word embeddings.
    norm = math.sqrt(sum(p.grad.double().square().sum().item()
                         for p in parameters))
    for parameter in parameters:
        parameter.grad.mul_(min(1.0, most / (norm + 1e-6)))
    return norm


# Runs. Each writes its losses to a file of the folder.

class Twin:
    def __init__(self, options):
        self.options = options
        self.folder = Path(options.folder).resolve()
        self.recipe = json.loads(RECIPE.read_text())
        self.text = self.folder / "text"

    @property
    def warmup(self):
        whole = self.recipe["training"]["max_steps"]
        return max(1, round(
            self.recipe["schedule"]["warmup_steps"] * self.options.steps
            / whole))

    def prepare(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if not Path(f"{self.text}-train.idx").exists():
            subprocess.run(
                [self.options.tessera, "tokenize",
                 "--model", self.options.tokenizer,
                 "--input", *self.options.text, "--output", self.text,
                 "--split", "0.98,0.02", "--end-token", "[SEP]",
                 "--skip-bad"], check=True)
        for name, dropout in [("equal", 0.0), ("own", 0.1)]:
            (self.folder / f"{name}_model.json").write_text(
                json.dumps(model_config(dropout), indent=1))
        if not (self.folder / "batches.safetensors").exists():
            torch.manual_seed(1)
            start = self.folder / "start"
            start.mkdir(exist_ok=True)
            (start / "config.json").write_text(json.dumps(model_config(0.0)))
            write_safetensors(start / "model.safetensors",
                              saved_names(Glm(0.0)))
            count = self.options.steps * MICRO_BATCHES * ROWS
            drawn = self.examples("train", 1).epochs()
            rows = [None] * count
            for place in sample_order(
                    count, self.recipe["training"]["seed"]):
                rows[place] = next(drawn)
            write_safetensors(self.folder / "batches.safetensors",
                              batch_of(rows))

    def examples(self, part, seed):
        return Examples(
            f"{self.text}-{part}",
            Blanks(self.recipe["data"]["blanks"],
                   sentence_ends(self.options.tokenizer),
                   random.Random(seed)))

    # PyTorch.

    def equal_steps(self):
        tensors = read_safetensors(self.folder / "batches.safetensors")
        order = torch.tensor(sample_order(
            len(tensors["sep"]), self.recipe["training"]["seed"]))
        for micro in order.split(ROWS):
            yield {name: t[micro] for name, t in tensors.items()}

    def own_steps(self, seed):
        drawn = self.examples("train", seed).epochs()
        while True:
            yield batch_of([next(drawn) for _ in range(ROWS)])

    def rate(self, step):
        schedule, steps = self.recipe["schedule"], self.options.steps
        if step < self.warmup:
            return PEAK_LR * (step + 1) / self.warmup
        part = (step - self.warmup) / (steps - self.warmup)
        last = schedule["final_factor"]
        return PEAK_LR * (
            last + (1 - last) * (1 + math.cos(math.pi * part)) / 2)

    def run_torch(self, name, dtype="float32", seed=None):
        begin = time.monotonic()
        torch.set_num_threads(1)
        own = seed is not None
        torch.manual_seed(seed if own else 1)
        model = Glm(0.1 if own else 0.0)
        if not own:
            start = read_safetensors(
                self.folder / "start" / "model.safetensors")
            for key, parameter in saved_names(model).items():
                parameter.data.copy_(start[key])
        model = model.to(getattr(torch, dtype)).train()
        chosen = self.recipe["optimizer"]
        kept = [p for n, p in model.named_parameters()
                if n.endswith("bias") or "layernorm" in n]
        decays = [p for n, p in model.named_parameters()
                  if not (n.endswith("bias") or "layernorm" in n)]
        optimizer = torch.optim.AdamW(
            [{"params": decays, "weight_decay": chosen["weight_decay"]},
             {"params": kept, "weight_decay": 0}],
            betas=chosen["betas"], eps=chosen["eps"])
        batches = self.own_steps(seed) if own else self.equal_steps()
        losses, norms = [], []
        for step in range(self.options.steps):
            total = 0
            for _ in range(MICRO_BATCHES):
                loss, count = model.losses(next(batches))
                (loss / count / MICRO_BATCHES).backward()
                total += loss.item() / count / MICRO_BATCHES
            losses.append(total)
            norms.append(clip(
                list(model.parameters()),
                self.recipe["training"]["clip_grad_norm"]))
            for group in optimizer.param_groups:
                group["lr"] = self.rate(step)
            optimizer.step()
            optimizer.zero_grad()
        result = {"losses": losses, "norms": norms}
        if own:
            result["heldout"] = self.torch_scores(model, seed)
        self.keep(name, result, begin)

    def torch_scores(self, model, seed):
        return [self.score(model.eval(), 10 * seed + draw)
                for draw in range(DRAWS)]

    def score(self, model, seed):
        """The loss on held-out text with blanks of this seed, and labels."""
        held_out = self.examples("heldout", 1000 + seed)
        rows = [held_out.blanks.example(t) for t in held_out.texts()]
        total = labels = 0
        with torch.no_grad():
            for i in range(0, len(rows), 16):
                loss, count = model.losses(batch_of(rows[i:i + 16]))
                total += loss.item()
                labels += count
        return total / labels, labels

    # Tessera.

    def run_tessera(self, name, ranks=1, precision="float32", seed=None):
        begin = time.monotonic()
        own = seed is not None
        config = {
            "extends": str(RECIPE),
            "device": "cpu",
            "optimizer": {"lr": PEAK_LR},
            "schedule": {"warmup_steps": self.warmup},
            "training": {
                "batch_size": ROWS, "accumulate": MICRO_BATCHES // ranks,
                "max_steps": self.options.steps, "save_every": 0,
                "save_minutes": 0, "save_last": False},
            "output": {"folder": str(self.folder / name), "overwrite": True}}
        if precision == "float32":
            config["precision"] = {
                "parameters": "float32", "gradients": "float32"}
        if own:
            config["model"] = {"config": str(self.folder / "own_model.json"),
                               "max_length": LENGTH}
            config["data"] = {
                "train": f"{self.text}-train",
                "heldout": f"{self.text}-heldout",
                "tokenizer": self.options.tokenizer,
                "special_tokens": {
                    key: TOKENS[key]
                    for key in ["sentence_mask", "document_mask",
                                "piece_start", "piece_end"]}}
            config["training"]["seed"] = seed
        else:
            config["task"] = "examples"
            config["model"] = {
                "config": None, "max_length": None,
                "folder": str(self.folder / "start")}
            config["data"] = dict.fromkeys(
                ["heldout", "objective", "tokenizer", "special_tokens",
                 "blanks"])
            config["data"]["train"] = str(
                self.folder / "batches.safetensors")
        path = self.folder / f"{name}.config.json"
        path.write_text(json.dumps(config, indent=1))
        command = [self.options.tessera, "train", str(path)]
        if ranks > 1:
            command = [self.options.tessera, "launch", "--nproc", str(ranks),
                       "--", *command]
        with open(self.folder / f"{name}.log", "w") as log:
            subprocess.run(
                command, check=True, stdout=log, stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1",
                                  "OMP_WAIT_POLICY": "passive"})
        lines = [json.loads(line) for line in
                 (self.folder / name / "metrics.jsonl").open()]
        result = {"losses": [line["loss"] for line in lines],
                  "norms": [line["grad_norm"] for line in lines]}
        if own:
            result["heldout"] = self.tessera_scores(name, seed)
            # The other side's blanks and model, with these weights.
            model = Glm(0.0)
            weights = read_safetensors(
                self.folder / name / "model" / "model.safetensors")
            for key, parameter in saved_names(model).items():
                parameter.data.copy_(weights[key])
            result["heldout_torch"] = self.torch_scores(model, seed)
        self.keep(name, result, begin)

    def tessera_scores(self, name, seed):
        scores = []
        for draw in range(DRAWS):
            text = subprocess.run(
                [self.options.tessera, "eval", self.folder / name,
                 f"training.seed={10 * seed + draw}"], check=True,
                capture_output=True, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout
            loss, labels = re.search(
                r"loss ([\d.]+) over (\d+) tokens", text).groups()
            scores.append((float(loss), int(labels)))
        return scores

    def keep(self, name, result, begin):
        result["seconds"] = time.monotonic() - begin
        result["settings"] = self.settings()
        (self.folder / f"{name}.json").write_text(json.dumps(result))

    def settings(self):
        return [LAYERS, HIDDEN, HEADS, LENGTH, ROWS, MICRO_BATCHES, PEAK_LR,
                self.options.steps, self.recipe]

    def found(self, name):
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        return result if result["settings"] == self.settings() else None

    def runs(self):
        """Name, function, arguments, and the cores that a run takes."""
        seeds = range(1, self.options.seeds + 1)
        return [
            ("equal_torch", "run_torch", {}, 1),
            ("equal_torch64", "run_torch", {"dtype": "float64"}, 1),
            ("equal_tessera", "run_tessera", {}, 1),
            ("equal_tessera_bf16", "run_tessera", {"precision": "recipe"}, 1),
            *[(f"own_{side}_{seed}", f"run_{side}", {"seed": seed}, 1)
              for seed in seeds for side in ["torch", "tessera"]],
            ("equal_tessera_2ranks", "run_tessera", {"ranks": 2}, 2)]

    def run_all(self):
        left = [run for run in self.runs() if self.found(run[0]) is None]

        def run(name):
            # In a process of its own, which has its own random numbers.
            subprocess.run([sys.executable, *sys.argv, "--only", name],
                           check=True)
            print(f"{name}: {self.found(name)['seconds']:.0f} s", flush=True)

        for cores, jobs in [(1, self.options.jobs), (2, 1)]:
            with ThreadPoolExecutor(jobs) as pool:
                for done in [pool.submit(run, one[0]) for one in left
                             if one[3] == cores]:
                    done.result()


# The report.

def smoothed(losses, width):
    return [statistics.fmean(losses[i:i + width])
            for i in range(0, len(losses) - width + 1, width)]


def distances(losses, others):
    return [abs(a - b) for a, b in zip(losses, others)]


def report(twin):
    results = {run[0]: twin.found(run[0]) for run in twin.runs()}
    reference = results["equal_torch"]
    exact = results["equal_torch64"]
    steps = twin.options.steps
    print(f"\nEqual batches, {steps} steps, loss "
          f"{reference['losses'][0]:.4f} to "
          f"{smoothed(reference['losses'], 50)[-1]:.4f}; per step, the "
          "absolute difference of losses")
    print("| | max, steps 1 - 50 | max, steps 1 - 100 | mean | max | "
          "loss, last 50 |\n| --- | --- | --- | --- | --- | --- |")

    def row(title, one, other):
        far = distances(one["losses"], other["losses"])
        print(f"| {title} | {max(far[:50]):.1e} | {max(far[:100]):.1e} | "
              f"{statistics.fmean(far):.1e} | {max(far):.1e} | "
              f"{smoothed(one['losses'], 50)[-1]:.3f} |")

    one, two = results["equal_tessera"], results["equal_tessera_2ranks"]
    row("Tessera, PyTorch", one, reference)
    row("Tessera on 2 ranks, PyTorch", two, reference)
    row("Tessera on 2 ranks, on 1 rank", two, one)
    row("PyTorch, PyTorch in float64", reference, exact)
    row("Tessera, PyTorch in float64", one, exact)
    row("Tessera on 2 ranks, PyTorch in float64", two, exact)
    row("Tessera in bfloat16, PyTorch in float64",
        results["equal_tessera_bf16"], exact)
    norms = [abs(a - b) / b for a, b in zip(one["norms"], exact["norms"])]
    print("gradient norms of the first 100 steps, Tessera and PyTorch in "
          f"float64: relative difference at most {max(norms[:100]):.1e}")

    width = max(1, steps // 20)
    seeds = range(1, twin.options.seeds + 1)
    own = {side: [results[f"own_{side}_{seed}"] for seed in seeds]
           for side in ["torch", "tessera"]}
    curves = {side: [smoothed(one["losses"], width) for one in runs]
              for side, runs in own.items()}
    print(f"\nOwn batches, {twin.options.seeds} seeds each, means of {width} "
          "steps")
    print("| steps | PyTorch | Tessera | difference of means | standard error |"
          "\n| --- | --- | --- | --- | --- |")
    differences, errors = [], []
    windows = range(len(curves["torch"][0]))
    for i in windows:
        values = {side: [curve[i] for curve in of]
                  for side, of in curves.items()}
        means = {side: statistics.fmean(of) for side, of in values.items()}
        differences.append(means["tessera"] - means["torch"])
        spread = sum(statistics.variance(of) for of in values.values()
                     ) if len(seeds) > 1 else math.nan
        errors.append(math.sqrt(spread / len(seeds)))
        if i % 4 == 3 or i == 0:
            print(f"| {i * width + 1} - {(i + 1) * width} | "
                  f"{means['torch']:.3f} | {means['tessera']:.3f} | "
                  f"{differences[-1]:+.3f} | {errors[-1]:.3f} |")
    pooled = math.sqrt(statistics.fmean(e * e for e in errors))
    print(f"over all {len(differences)} windows: mean difference "
          f"{statistics.fmean(differences):+.4f}, root mean square "
          f"{math.sqrt(statistics.fmean(d * d for d in differences)):.4f}, "
          f"expected of seeds {pooled:.4f}")
    print(f"\nHeld-out text, {DRAWS} draws of blanks for each seed: loss, its "
          "standard deviation, labels\n| weights | blanks and model | "
          + " | ".join(f"seed {seed}" for seed in seeds)
          + " |\n| --- | --- |" + " --- |" * len(seeds))
    for weights, scorer, runs, key in [
            ("PyTorch", "PyTorch", own["torch"], "heldout"),
            ("Tessera", "PyTorch", own["tessera"], "heldout_torch"),
            ("Tessera", "Tessera", own["tessera"], "heldout")]:
        cells = []
        for one in runs:
            losses, labels = zip(*one[key])
            spread = statistics.stdev(losses) if len(losses) > 1 else math.nan
            cells.append(f"{statistics.fmean(losses):.3f} ({spread:.3f}), "
                         f"{statistics.fmean(labels):.0f}")
        print(f"| {weights} | {scorer} | {' | '.join(cells)} |")
    print("seconds:", ", ".join(
        f"{name} {one['seconds']:.0f}" for name, one in results.items()))
    Path(twin.options.figure).write_text(figure(results, curves, width))


class Svg:
    """A figure of panels, with axes and lines."""

    WIDTH, HEIGHT, GAP, LEFT = 330, 230, 70, 60

    def __init__(self, panels):
        self.parts = [
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {panels * (self.WIDTH + self.GAP) + 16} '
            f'{self.HEIGHT + 130}" font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="#fff"/>']

    def panel(self, number, title, span, ticks, steps):
        self.x0 = number * (self.WIDTH + self.GAP) + self.LEFT
        self.y0, self.span, self.steps = 34, span, steps
        self.keys = 0
        self.parts.append(f'<text x="{self.x0}" y="18" font-size="13">{title}'
                          '</text>')
        for value, text in ticks:
            y = self.y(value)
            self.parts.append(
                f'<path d="M{self.x0} {y}h{self.WIDTH}" stroke="#ddd"/>'
                f'<text x="{self.x0 - 6}" y="{y + 4}" text-anchor="end">{text}'
                '</text>')
        bottom = self.y0 + self.HEIGHT
        for step in range(0, steps + 1, max(1, steps // 5)):
            self.parts.append(
                f'<text x="{self.x(step)}" y="{bottom + 16}" '
                f'text-anchor="middle">{step}</text>')
        self.parts.append(
            f'<path d="M{self.x0} {self.y0}v{self.HEIGHT}h{self.WIDTH}" '
            'fill="none" stroke="#444"/>'
            f'<text x="{self.x0 + self.WIDTH}" y="{bottom + 34}" '
            'text-anchor="end">optimizer step</text>')

    def x(self, step):
        return round(self.x0 + self.WIDTH * step / self.steps, 1)

    def y(self, value):
        low, high = self.span
        part = (min(max(value, low), high) - low) / (high - low)
        return round(self.y0 + self.HEIGHT * (1 - part), 1)

    def line(self, values, width, color, name, dashes="", thick=1.4):
        points = " ".join(f"{self.x((i + 0.5) * width)},{self.y(v)}"
                          for i, v in enumerate(values))
        style = (f'fill="none" stroke="{color}" stroke-width="{thick}"'
                 + (f' stroke-dasharray="{dashes}"' if dashes else ""))
        self.parts.append(f'<polyline points="{points}" {style}/>')
        if name:
            y = self.y0 + self.HEIGHT + 34 + 14 * self.keys
            self.parts.append(
                f'<path d="M{self.x0} {y}h26" {style}/>'
                f'<text x="{self.x0 + 32}" y="{y + 4}">{name}</text>')
            self.keys += 1

    def text(self):
        return "\n".join([*self.parts, "</svg>", ""])


def figure(results, curves, width):
    steps = len(results["equal_torch"]["losses"])
    svg = Svg(3)
    means = {name: smoothed(one["losses"], max(1, steps // 200))
             for name, one in results.items()}
    everything = [v for of in means.values() for v in of]
    span = (math.floor(min(everything)), math.ceil(max(everything)))
    losses = [(v, str(v)) for v in range(span[0], span[1] + 1)]
    blue, orange, green, gray = "#1667b8", "#d9730d", "#2c8c4a", "#888"
    svg.panel(0, "Loss on equal batches", span, losses, steps)
    every = max(1, steps // 200)
    svg.line(means["equal_torch"], every, orange, "PyTorch", thick=3)
    svg.line(means["equal_tessera"], every, blue, "Tessera, 1 rank")
    svg.line(means["equal_tessera_2ranks"], every, green,
             "Tessera, 2 ranks, ZeRO-3", "4 4")
    svg.line(means["equal_tessera_bf16"], every, "#a03", "Tessera in bfloat16",
             "1 3")
    exact = results["equal_torch64"]["losses"]
    svg.panel(1, "Distance from float64, greatest of 10 steps",
              (-8, 0), [(v, f"1e{v}") for v in range(-8, 1, 2)], steps)
    for name, title, color, dashes in [
            ("equal_torch", "PyTorch", orange, ""),
            ("equal_tessera", "Tessera, 1 rank", blue, ""),
            ("equal_tessera_2ranks", "Tessera, 2 ranks, ZeRO-3", green, "4 4"),
            ("equal_tessera_bf16", "Tessera in bfloat16", "#a03", "1 3")]:
        far = distances(results[name]["losses"], exact)
        tens = [max(far[i:i + 10]) for i in range(0, len(far), 10)]
        svg.line([math.log10(max(v, 1e-9)) for v in tens], 10, color, title,
                 dashes)
    svg.panel(2, f"Own batches, means of {width} steps", span, losses, steps)
    for side, title, color, dashes in [
            ("torch", "PyTorch, each seed", orange, ""),
            ("tessera", "Tessera, each seed", blue, "4 3")]:
        for number, curve in enumerate(curves[side]):
            svg.line(curve, width, color, "" if number else title, dashes)
    return svg.text()


def main():
    library = sysconfig.get_paths()["stdlib"]
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2,
                        help="runs of one thread at a time")
    parser.add_argument("--tokenizer", default=str(ROOT / "models" / "minilm"))
    parser.add_argument("--text", nargs="+", default=[f"{library}/*.py"])
    parser.add_argument("--folder", default="runs/glm_pretrain")
    parser.add_argument("--figure", default="runs/glm_pretrain/curves.svg")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tessera = str(Path(options.tessera).resolve())
    options.tokenizer = str(Path(options.tokenizer).resolve())
    twin = Twin(options)
    if options.only:
        name, function, arguments, _ = next(
            run for run in twin.runs() if run[0] == options.only)
        getattr(twin, function)(name, **arguments)
        return
    twin.prepare()
    twin.run_all()
    report(twin)


if __name__ == "__main__":
    main()

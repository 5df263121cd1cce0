#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of Tessera's tokenizers next to the `tokenizers` package, on one thread.

    tokenizers_speed.py build/release/bin/bench_tokenizer [--rounds 3]
        [--texts FILE...]

Needs tokenizers. Trains a vocabulary of 30,000 tokens of each kind on the texts
(by default the sources of Python's standard library and what Vim's tutors of
other languages are there); both sides encode all texts, with the places of
tokens (encode_batch) and without (encode_batch_fast), decode the ids, and have
to agree on them. Rounds alternate; a figure is the median of wall times.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import (  # noqa: E402  reads the number of threads
    Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers)

VOCABULARY = 30000


def byte_level():
    one = Tokenizer(models.BPE())
    one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    one.decoder = decoders.ByteLevel()
    return one, trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def digits():
    one, trainer = byte_level()
    one.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(
            Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
                r"\s+(?!\S)|\s+"),
            "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return one, trainer


def metaspace_bpe():
    one = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    one.pre_tokenizer = pre_tokenizers.Metaspace()
    one.decoder = decoders.Metaspace()
    return one, trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, special_tokens=["<unk>"])


def word_piece():
    one = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    one.normalizer = normalizers.BertNormalizer()
    one.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    one.decoder = decoders.WordPiece()
    return one, trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, show_progress=False, special_tokens=["[UNK]"])


def unigram():
    one = Tokenizer(models.Unigram())
    one.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Replace(
            Regex(" {2,}"), " ")])
    one.pre_tokenizer = pre_tokenizers.Metaspace()
    one.decoder = decoders.Metaspace()
    return one, trainers.UnigramTrainer(
        vocab_size=VOCABULARY, show_progress=False, unk_token="<unk>",
        special_tokens=["<unk>"])


KINDS = {
    "byte-level BPE (GPT-2)": byte_level,
    "byte-level BPE (LLaMA 3)": digits,
    "BPE over words": metaspace_bpe,
    "WordPiece (BERT)": word_piece,
    "Unigram (T5)": unigram,
}

PEER = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = json.load(open(sys.argv[2]))
def timed(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result
slow, _ = timed(lambda: tokenizer.encode_batch(texts))
fast, encoded = timed(lambda: tokenizer.encode_batch_fast(texts))
ids = [one.ids for one in encoded]
decoding, written = timed(lambda: sum(
    len(tokenizer.decode(row).encode()) for row in ids))
print(json.dumps(dict(with_offsets=slow, fast=fast, decoding=decoding,
                      characters=written, ids=ids)))
"""


def usual_texts():
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in library.rglob("*.py")
                   if "site-packages" not in path.parts)
    files += sorted(Path("/usr/share/vim").glob("vim*/tutor/tutor*.utf-8"))
    return files


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def compare(given, kind, file, texts, megabytes):
    sides = [[given.bench_tokenizer], [sys.executable, "-c", PEER]]
    found = [[], []]
    for turn in range(given.rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            found[side].append(run([*sides[side], file, texts]))
        ours, theirs = found[0][-1], found[1][-1]
        if (ours["ids"], ours["characters"]) != (
                theirs["ids"], theirs["characters"]):
            sys.exit(f"{kind}: the tokens or the decoded texts differ")
    for what in ("with_offsets", "fast", "decoding"):
        times = [[one[what] for one in side] for side in found]
        ratios = sorted(b / a for a, b in zip(*times))
        rates = [megabytes / statistics.median(side) for side in times]
        print(f"| {kind} | {what.replace('_', ' ')} | {rates[0]:.2f} | "
              f"{rates[1]:.2f} | {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f} - {ratios[-1]:.2f}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench_tokenizer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=Path, nargs="+", default=usual_texts())
    given = parser.parse_args()
    texts = [path.read_text(errors="replace") for path in given.texts]
    texts = [text for text in texts if text.strip()]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} texts, {megabytes:.1f} MB, MB/s\n\n"
          "| tokenizer | | Tessera | tokenizers | ratio (range) |\n"
          "| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        all_texts = str(Path(scratch) / "texts.json")
        Path(all_texts).write_text(json.dumps(texts))
        for kind, make in KINDS.items():
            tokenizer, trainer = make()
            tokenizer.train_from_iterator(texts, trainer)
            file = str(Path(scratch) / "tokenizer.json")
            tokenizer.save(file)
            compare(given, kind, file, all_texts, megabytes)


if __name__ == "__main__":
    main()

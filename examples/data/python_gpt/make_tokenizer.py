#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Made the tokenizer in this folder: byte-level BPE of 2048 tokens, of some of
the modules of Python's standard library.

    make_tokenizer.py examples/data/python_gpt

Needs tokenizers (0.23.3 made the one that is there).
"""
import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
out = Path(sys.argv[1])
library = Path(sysconfig.get_paths()["stdlib"])
files = [str(path) for path in sorted(library.glob("*.py"))]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train(files, trainers.BpeTrainer(
    vocab_size=2048, special_tokens=[END], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
(out / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
(out / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END,
    "bos_token": END, "clean_up_tokenization_spaces": False}, indent=2) + "\n")

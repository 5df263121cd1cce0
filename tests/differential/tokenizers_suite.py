# SPDX-License-Identifier: Apache-2.0
"""Tokenizer folders: classes, model types, flags and sets of files beside
transformers' AutoTokenizer. The vocabularies are those of
tests/fixture_makers/tokenizer_classes.py."""
import json
import shutil

from suite import RecordedSuite, ZOO_FIXTURES, run_program, write_json
from suite import write_json_lines

VOCABULARIES = ZOO_FIXTURES / "tokenizer_classes"
TEXTS = [
    "Hello world", "  two  spaces ", "", "don't stop, 1,000 times!",
    "Café NAÏVE 中文", "<mask> x <mask>y", "a </s> b", "[MASK] it [SEP]",
    "<extra_id_0> . Hello <extra_id_2>", "a [ENT] b", "``quoted'' 9,9",
    "<|user|>\n hi", "x[ent]y <new>z <new> ", "<s>a<s> <pad>", "\ttab\r\nA b",
    "A\u0301 e\u0301 ﬁ ①", "  <s>  [CLS] x", "hello.", "Hello\u00a0world \u3000x"]

WORDS = "vocab.txt"
BYTES = "vocab.json"


def kind(vocabulary, classes, types, flags, *, follows=(), special=()):
    return {"vocabulary": vocabulary, "classes": classes, "types": types,
            "flags": flags, "follows": list(follows), "special": list(special)}


BOTH = [True, False]


def beside_json(name, classes, types, flags, *, follows=(), special=()):
    """A tokenizer.json, which some classes overrule."""
    return kind(f"tokenizer.json={name}.json", classes, types, flags,
                follows=follows, special=special)


KINDS = {
    "bert": kind(
        WORDS, ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"],
        ["bert", "distilbert", "electra", "mobilebert"],
        {"do_lower_case": BOTH, "strip_accents": [True, False, None],
         "tokenize_chinese_chars": BOTH},
        special=["mask_token", "unk_token", "pad_token"]),
    "gpt2": kind(
        BYTES, ["GPT2Tokenizer"], ["gpt2", "gptj", "opt"],
        {"add_prefix_space": BOTH, "add_bos_token": BOTH},
        special=["bos_token", "eos_token", "pad_token"]),
    "roberta": kind(
        BYTES, ["RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"],
        ["roberta", "longformer", "bart"], {"add_prefix_space": BOTH},
        follows=["4"], special=["mask_token"]),
    "qwen2": kind(
        BYTES, ["Qwen2Tokenizer"], ["qwen2", "qwen3"],
        {"add_prefix_space": [False], "add_bos_token": [False]},
        special=["eos_token", "pad_token"]),
    "t5": kind(
        "spiece.model=t5", ["T5Tokenizer"], ["t5", "mt5"],
        {"extra_ids": [0, 3, 100], "legacy": BOTH},
        special=["pad_token"]),
    "llama": kind(
        "tokenizer.model=llama", ["LlamaTokenizer"], ["llama", "mistral"],
        {"add_bos_token": BOTH, "add_eos_token": BOTH, "legacy": BOTH,
         "add_prefix_space": BOTH, "use_default_system_prompt": [False]},
        follows=["4"], special=["bos_token", "eos_token", "pad_token"]),
    "gemma": kind(
        "tokenizer.model=gemma", ["GemmaTokenizer"], ["gemma", "gemma2"],
        {"add_bos_token": BOTH, "add_eos_token": BOTH}, follows=["4"],
        special=["pad_token"]),
    "xlm_roberta": kind(
        "sentencepiece.bpe.model=fairseq", ["XLMRobertaTokenizer"],
        ["xlm-roberta"], {}, follows=["4"], special=["mask_token"]),
    "camembert": kind(
        "sentencepiece.bpe.model=fairseq", ["CamembertTokenizer"],
        ["camembert"], {}, follows=["4"], special=["mask_token"]),
    "albert": kind(
        "spiece.model=albert", ["AlbertTokenizer"], ["albert"],
        {"do_lower_case": BOTH, "keep_accents": BOTH, "remove_space": [True]},
        follows=["5"], special=["mask_token"]),
    "pegasus": kind(
        "spiece.model=t5", ["PegasusTokenizer"], ["pegasus"], {},
        follows=["4"]),  # and no added tokens, which it does not find
    "bert_json": beside_json(
        "bert", ["BertTokenizer", "DistilBertTokenizer", "PreTrainedTokenizerFast"],
        ["bert", "distilbert"],
        {"do_lower_case": BOTH, "strip_accents": [True, False, None],
         "tokenize_chinese_chars": BOTH},
        special=["mask_token"]),
    "gpt2_json": beside_json(
        "gpt2", ["GPT2Tokenizer", "PreTrainedTokenizerFast"], ["gpt2", "opt"],
        {"add_prefix_space": BOTH, "add_bos_token": BOTH},
        special=["bos_token", "eos_token", "pad_token"]),
    "roberta_json": beside_json(
        "roberta", ["RobertaTokenizer", "PreTrainedTokenizerFast"],
        ["roberta", "longformer"], {"add_prefix_space": BOTH},
        special=["mask_token"]),
    "llama_json": beside_json(
        "llama", ["LlamaTokenizer", "PreTrainedTokenizerFast"],
        ["llama", "mistral"],
        {"add_bos_token": BOTH, "add_eos_token": BOTH, "legacy": BOTH,
         "add_prefix_space": BOTH},
        special=["pad_token"]),
    "t5_json": beside_json(
        "t5", ["T5Tokenizer", "PreTrainedTokenizerFast"], ["t5", "mt5"],
        {"extra_ids": [100], "legacy": BOTH}),
}
TOKENS = {"bos_token": ["<s>", "<|endoftext|>"], "eos_token": ["</s>", "<|endoftext|>"],
          "mask_token": ["<mask>", "[MASK]"], "unk_token": ["<unk>", "[UNK]"],
          "pad_token": ["<pad>", "[PAD]"]}
SIZES = {"bert": 45, "llama": 400, "gemma": 400, "xlm_roberta": 107,
         "camembert": 110, "albert": 105, "pegasus": 208}
NEW_TOKENS = ["[ENT]", "<new>", "<|user|>", "x", "``"]


def added_token(random, content, **more):
    return {"content": content, "lstrip": random.random() < .3,
            "rstrip": random.random() < .3, "normalized": random.random() < .5,
            "single_word": random.random() < .2, **more}


def vocabulary_files(description):
    if description == WORDS:
        return {WORDS: WORDS}
    if description == BYTES:
        return {BYTES: BYTES, "merges.txt": "merges.txt"}
    name, source = description.split("=")
    return {name: source if "." in source else source + ".model"}


def size_of(name, flags):
    """The first id of an added token."""
    name = name.removesuffix("_json")
    if KINDS[name]["vocabulary"] == BYTES:
        return len(json.loads((VOCABULARIES / BYTES).read_text()))
    if name == "t5":
        return 105 + flags.get("extra_ids", 100)
    return SIZES[name]


class Tokenizers(RecordedSuite):
    name = "tokenizers"
    needs = ("transformers", "tokenizers")

    def cases(self, random, count):
        names = list(KINDS)
        return [self.case(random, names[i % len(names)]) for i in range(count)]

    def case(self, random, name):
        kind = KINDS[name]
        config, tokenizer, special, added = {}, {}, {}, {}
        named = random.random()
        class_name = random.choice(kind["classes"])
        if random.random() < .3 and not class_name.endswith("Fast"):
            class_name += "Fast"
        if named < .75:
            config["model_type"] = random.choice(kind["types"])
        if named > .5:
            tokenizer["tokenizer_class"] = class_name
        elif named < .1:
            config["tokenizer_class"] = class_name
        for flag, values in kind["flags"].items():
            if random.random() < .4:
                tokenizer[flag] = random.choice(values)
        if random.random() < .2:
            tokenizer["model_max_length"] = random.choice([512, 1e30])
        for key in kind["special"]:
            if random.random() < .3:
                content = TOKENS[key][name in ("bert", "bert_json", "albert")]
                target = random.choice([tokenizer, special])
                mark = {"__type": "AddedToken"} if target is tokenizer else {}
                target[key] = random.choice([content, added_token(
                    random, content, single_word=False, **mark)])
        first = size_of(name, tokenizer)
        new = [token for token in NEW_TOKENS[:3] if random.random() < .4]
        how = 1 if name == "pegasus" else random.random()
        if how < .3:
            added = {token: first + i for i, token in enumerate(new)}
            if random.random() < .5 and new and name != "albert":
                special["additional_special_tokens"] = new[:1]
        elif how < .5:
            tokenizer["added_tokens_decoder"] = {
                str(first + i): added_token(
                    random, token, special=random.random() < .5)
                for i, token in enumerate(new)}
        elif how < .6 and new:
            tokenizer["additional_special_tokens"] = new
        files = {"config.json": config, "tokenizer_config.json": tokenizer,
                 "special_tokens_map.json": special, "added_tokens.json": added}
        return {"kind": name, "files": {
            file: content for file, content in files.items()
            if content or file == "config.json" and named < .75}}

    def versions(self, case):
        return KINDS[case["kind"]]["follows"]

    def write(self, case, folder):
        sources = vocabulary_files(KINDS[case["kind"]]["vocabulary"])
        for name, source in sources.items():
            shutil.copy(VOCABULARIES / source, folder / name)
        for name, content in case["files"].items():
            write_json(folder / name, content)

    def expected(self, case, folder):
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return [tokenizer(text)["input_ids"] for text in TEXTS]

    def actual(self, case, folder, program):
        write_json_lines(folder / "texts.jsonl", [{"text": text} for text in TEXTS])
        output, error = run_program(
            program, "tokens", folder, "--input", folder / "texts.jsonl", "--json")
        if output is None:
            return {"refused": error}
        return [json.loads(line)["input_ids"] for line in output.splitlines()]

    def differences(self, case, answers, actual):
        """Where versions differ, and the case follows both, either counts."""
        answers = [rows for rows in answers.values() if "refused" not in rows]
        if not answers:
            return []
        if "refused" in actual:
            return [actual["refused"]]
        return [f"{text!r}: {ours}, expected {' or '.join(map(str, theirs))}"
                for text, ours, *theirs in zip(TEXTS, actual, *answers)
                if ours not in theirs]


SUITE = Tokenizers()

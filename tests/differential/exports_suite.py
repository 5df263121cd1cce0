# SPDX-License-Identifier: Apache-2.0
"""Folders and GGUF files that are written here, opened by their readers:
transformers, the package gguf and llama.cpp (xllamacpp), which are left out by
name where they are not installed. Without any of them, tests/zoo/gguf_test.cpp
and hf_folder_writer_test.cpp compare with the tensors they were made from."""
import importlib.util
import json
import sys
import warnings

from suite import LiveSuite, PROJECT, run_program, write_json

sys.path.insert(0, str(PROJECT / "tests/fixture_makers"))
READERS = {"gguf": "check_gguf", "xllamacpp": "check_llama_cpp"}


class Exports(LiveSuite):
    name = "exports"
    needs = ("transformers", "torch", "safetensors")

    def cases(self, random, count):
        names = ["llama", "qwen2", "qwen3", "gpt2", "opt", "glm4", "t5", "bert",
                 "roberta"]
        cases = [{
            "reader": "transformers", "model": names[i % len(names)], "seed": i,
            "tied": random.random() < .5,
            "dtype": random.choice(["keep", "float32", "bfloat16", "float16"]),
            "shards": random.choice(["50GB", "20kB"])} for i in range(count)]
        from tokenizers_suite import KINDS, SUITE as tokenizers
        kinds = list(KINDS)
        cases += [{"reader": "tokenizer", "seed": i, "folder": tokenizers.case(
            random, kinds[i % len(kinds)])} for i in range(count)]
        for reader in READERS:
            if importlib.util.find_spec(reader) is None:
                print(f"exports: not opened by {reader}, which is not installed")
                continue
            from check_gguf import MODELS
            cases += [{"reader": reader, "model": name}
                      for name in list(MODELS)[:max(1, count // 3)]]
        return cases

    def differences(self, case, folder, program):
        warnings.simplefilter("ignore")
        if case["reader"] == "transformers":
            return of_transformers(case, folder, program)
        if case["reader"] == "tokenizer":
            return of_tokenizer(case, folder, program)
        from check_gguf import MODELS
        check = __import__(READERS[case["reader"]]).check
        check(program, case["model"], MODELS[case["model"]], folder)
        return []


def of_transformers(case, folder, program):
    import torch
    import tiny_models
    import transformers
    model = tiny_models.make(case["model"], case["tied"], case["seed"])
    if case["dtype"] != "keep":
        model = model.to(getattr(torch, case["dtype"]))
    batch = tiny_models.inputs_of(case["model"], case["seed"])
    model.float().save_pretrained(folder / "base")
    output, error = run_program(
        program, "convert", "--from", folder / "base", "--to", folder / "out",
        "--dtype", case["dtype"], "--max-shard-size", case["shards"],
        "--no-tokenizer")
    if output is None:
        return [error]
    config = json.loads((folder / "out/config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    found, report = kind.from_pretrained(
        folder / "out", output_loading_info=True, dtype="auto")
    wrong = [f"{key}: {value}" for key, value in report.items() if value]
    wanted = "float32" if case["dtype"] == "keep" else case["dtype"]
    if found.dtype != getattr(torch, wanted):
        wrong.append(f"loaded as {found.dtype}, written as {wanted}")
    base = kind.from_pretrained(folder / "base")
    with torch.no_grad():
        same = torch.equal(found.float().eval()(**batch).logits,
                           base.eval()(**batch).logits)
    shards = len(list((folder / "out").glob("*.safetensors")))
    if (shards > 1) != (case["shards"] == "20kB"):
        wrong.append(f"{shards} files of weights")
    return wrong + ([] if same else ["other logits"])


def of_tokenizer(case, folder, program):
    """A copied folder has the tokenizer that it had, whatever files say so."""
    import tiny_models
    from tokenizers_suite import SUITE as tokenizers
    base = folder / "base"
    tiny_models.make("llama", False, case["seed"]).save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    tokenizers.write(case["folder"], base)
    told = json.loads((base / "config.json").read_text())
    write_json(base / "config.json", {**config, **{
        key: value for key, value in told.items() if key == "tokenizer_class"}})
    try:
        expected = tokenizers.expected(case["folder"], base)
    except Exception:  # of whatever kind: there is nothing to be kept
        return []
    output, error = run_program(
        program, "convert", "--from", base, "--to", folder / "out")
    if output is None:
        return [] if "tokenizer" in error else [error]
    found = tokenizers.expected(case["folder"], folder / "out")
    return [] if found == expected else [f"{found}\nexpected {expected}"]


SUITE = Exports()

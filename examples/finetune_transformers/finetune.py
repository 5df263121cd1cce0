# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a causal language model of transformers on a text file.

On two CPU ranks, a small new model on this file's own text:

    tessera launch --nproc 2 -- python3 examples/finetune_transformers/finetune.py

On one GPU, a model of 13 billion parameters in bfloat16, whose optimizer state
(156 GB) rests in host memory:

    python3 examples/finetune_transformers/finetune.py --model models/llama-2-13b \
        --text book.txt --dtype bfloat16 --optimizer-on-host --recompute

The model is not touched; its folder is written by save_pretrained().
"""
import argparse
import pathlib

import torch
import transformers

import tessera


def small_model():
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128,
        num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=512)
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def tokens_of(given):
    text = given.text.read_text(encoding="utf-8")
    if given.model is None:
        return torch.tensor(list(text.encode()))  # bytes
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    return torch.tensor(tokenizer(text)["input_ids"])


def wrap_options(given):
    options = {"optimizer": {"type": "adamw", "lr": given.lr}}
    if given.dtype != "float32":
        options["precision"] = {"parameters": given.dtype}
    if given.optimizer_on_host:
        options["placement"] = {"optimizer": "host"}
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, default=__file__)
    parser.add_argument("--output", type=pathlib.Path, default="runs/finetuned")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--optimizer-on-host", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    given = parser.parse_args()
    given.text = pathlib.Path(given.text)

    world = tessera.init()
    model = small_model() if given.model is None else \
        transformers.AutoModelForCausalLM.from_pretrained(
            given.model, dtype=getattr(torch, given.dtype))
    if given.recompute:
        model.gradient_checkpointing_enable()
    model.to(world.device)
    engine = tessera.wrap(model, **wrap_options(given))

    tokens = tokens_of(given)
    windows = tokens[:len(tokens) // given.length * given.length].view(
        -1, given.length)
    sampler = tessera.BatchSampler(len(windows), given.batch_size)
    done = 0
    while done < given.steps:
        for batch in sampler:
            ids = windows[batch].to(world.device)
            loss = model(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.clip_grad_norm(1.0)
            engine.step()
            done += 1
            if world.rank == 0 and done % 10 == 0:
                print(f"step {done}: loss {loss.item():.3f}", flush=True)
            if done == given.steps:
                break

    state = engine.state_dict()
    if world.rank == 0:
        model.save_pretrained(given.output, state_dict=state)
        print(f"saved {given.output}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of docs/python.md run, and the example does."""
import json
import os
import pathlib
import re
import runpy
import shutil
import sys

import peft
import torch

import architectures
import tessera
from integrations_test import Tokens, arguments
from ranks import main, shared_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.S)


def model_of(_name):
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))


def runs_the_page(world):
    os.chdir(shared_folder())
    if world.rank == 0:
        pathlib.Path("run.json").write_text(
            json.dumps({"optimizer": {"type": "lion"}}), encoding="utf-8")
    (train, options, optimizer, resume, evaluate, plan, search, buffers, unfreeze,
     trainer, averaged, saved, allocated) = blocks()
    names = {}
    exec(train, names)
    assert os.path.exists("trained/model.safetensors")
    # Every engine has a module of its own.
    for block in options.split("engine = "):
        if block.strip():
            exec("engine = " + block,
                 {"tessera": tessera, "model": model_of("")})
    exec(optimizer, {"tessera": tessera, "torch": torch,
                     "model": model_of("")})
    if world.rank == 0:
        shutil.rmtree("resumable", ignore_errors=True)
    for _ in range(2):  # the second continues where the first has ended
        exec(resume, {})
    evaluated = {}
    exec(evaluate, evaluated)
    whole = evaluated["dataset"].tensors[0]
    with torch.no_grad(), evaluated["engine"].gather():
        wanted = torch.nn.functional.mse_loss(evaluated["model"](whole), whole)
    loss, samples = evaluated["totals"].tolist()
    assert samples == len(whole) and abs(loss / samples - wanted) < 1e-5
    exec(plan, {})
    exec(search, {})
    normed = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    engine = tessera.wrap(normed, log_memory=False)
    normed[1].running_mean.fill_(world.rank)
    exec(buffers, {"torch": torch, "tessera": tessera, "model": normed,
                   "engine": engine})
    assert normed[1].running_mean.tolist() == [(world.size - 1) / 2] * 4
    partly = model_of("")
    partly[0].requires_grad_(False)
    engine = tessera.wrap(partly, log_memory=False)

    def step(engine):
        engine.backward(partly(torch.ones(2, 8)).sum())
        engine.step()

    step(engine)
    before = engine.state_dict()
    unfrozen = {"tessera": tessera, "model": partly, "engine": engine}
    exec(unfreeze, unfrozen)
    step(unfrozen["engine"])
    for name, value in unfrozen["engine"].state_dict().items():
        assert not torch.equal(value, before[name]), name
    values = {"model": architectures.make_model("gpt2"), "dataset": Tokens(),
              "arguments": arguments("trainer", save_strategy="no")}
    exec(trainer, values)
    with_averages = values["Trainer"](
        architectures.make_model("gpt2"), values["arguments"],
        train_dataset=Tokens(), eval_dataset=Tokens(),
        wrap={"optimizer": {"ema_decay": 0.9}})
    with_averages.train()
    exec(averaged, {"trainer": with_averages})
    assert os.path.exists("averaged/model.safetensors") or world.rank > 0
    exec(saved, {"engine": values["trainer"].engine, "world": world,
                 "model": values["model"]})
    adapted = peft.get_peft_model(
        architectures.make_model("llama"), peft.AdaLoraConfig(
            init_r=4, target_r=2, tinit=1, tfinal=2, total_step=6,
            target_modules=["q_proj", "v_proj"]))
    engine = tessera.wrap(adapted, log_memory=False)
    engine.backward(architectures.loss_of(
        adapted, architectures.make_batch("llama", world.rank), 0))
    exec(allocated, {"engine": engine, "model": adapted, "step": 0})
    assert adapted.base_model.rankallocator.ipt


def runs_the_example(world):
    os.chdir(shared_folder())
    sys.argv = ["finetune.py", "--steps", "4", "--output", "finetuned"]
    runpy.run_path(
        str(ROOT / "examples/finetune_transformers/finetune.py"),
        run_name="__main__")
    if world.rank == 0:
        assert os.path.exists("finetuned/model.safetensors")


if __name__ == "__main__":
    main([runs_the_page, runs_the_example])

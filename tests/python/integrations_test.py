# SPDX-License-Identifier: Apache-2.0
"""Accelerate, transformers.Trainer, PEFT and torch's schedules, beside the same
without the engine."""
import copy
import os
import shutil

import torch
import transformers

import architectures
import tessera
from ranks import (
    SMALL, ids_of, loss_of, main, make_net, raises, shared_folder, train_plain)


def groups_of(model):
    """Biases are not decayed, and the head has a rate of its own."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if n.endswith("weight")
                    and "embed" not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if n.endswith("bias")],
         "weight_decay": 0.0},
        {"params": [model.embed.weight], "lr": 0.002, "weight_decay": 0.0}]


def optimizers_and_schedules(world):
    for make in (
            lambda model: torch.optim.AdamW(groups_of(model), lr=0.01),
            lambda model: torch.optim.Adam(groups_of(model), lr=0.01),
            lambda model: torch.optim.SGD(
                groups_of(model), lr=0.1, momentum=0.9, nesterov=True)):
        plain = make_net()
        model = copy.deepcopy(plain)
        optimizer = make(plain)
        engine = tessera.wrap(model, optimizer=make(model), **SMALL)
        start = copy.deepcopy(plain.state_dict())
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (step + 1))
            for one in (optimizer, engine.optimizer)]
        for step in range(4):
            train_plain(plain, optimizer, 1, world.size, first=step)
            engine.backward(loss_of(model, ids_of(step, world.rank)))
            engine.optimizer.step()
            for schedule in schedules:
                schedule.step()
        for name, value in engine.state_dict().items():
            if name != "seen":
                want = plain.state_dict()[name]
                moved = (want - start[name]).abs().max()
                off = (value - want).abs().max()
                assert off <= 1e-3 * moved, (name, off, moved)
    engine.optimizer.param_groups[0]["lr"] *= 2
    raises(engine.optimizer.step, "ratio")
    raises(lambda: tessera.wrap(
        make_net(), optimizer=torch.optim.Adagrad(make_net().parameters())),
        "Adagrad")
    other = make_net()
    raises(lambda: tessera.wrap(other, optimizer=torch.optim.SGD(
        other.blocks.parameters(), lr=0.1)), "embed.weight", "requires_grad_")


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = torch.randint(
            3, 96, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def arguments(folder, **values):
    return transformers.TrainingArguments(
        output_dir=folder, max_steps=6, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=1e-2, weight_decay=0.1,
        max_grad_norm=0.5, lr_scheduler_type="linear", logging_steps=1,
        save_steps=3, use_cpu=True, report_to=[], disable_tqdm=True,
        save_total_limit=3, seed=1, data_seed=1, dataloader_num_workers=0,
        **values)


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history
            if "loss" in entry]


def trainers(world):
    """The Trainer's losses, its checkpoints and its models, as without."""
    from tessera.integrations.transformers import Trainer
    folder = os.path.join(shared_folder(), "trainer")
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    plain = transformers.Trainer(
        architectures.make_model("llama"),
        arguments(os.path.join(folder, "plain"), save_strategy="no"),
        train_dataset=Tokens())
    plain.train()
    ours = Trainer(
        architectures.make_model("llama"), arguments(folder),
        train_dataset=Tokens(), eval_dataset=Tokens(), wrap=SMALL)
    ours.train()
    assert len(losses_of(ours)) == 6
    for got, want in zip(losses_of(ours), losses_of(plain)):
        # Logged with four digits.
        assert abs(got - want) < 2e-3, (losses_of(ours), losses_of(plain))
    want = plain.evaluate(Tokens())["eval_loss"]
    got = ours.evaluate()["eval_loss"]
    assert abs(got - want) < 1e-4 * want, (got, want)
    ours.save_model(os.path.join(folder, "model"))
    if world.rank == 0:
        saved = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.join(folder, "model"))
        for (name, a), (_, b) in zip(
                saved.named_parameters(),
                plain.accelerator.unwrap_model(plain.model).named_parameters()):
            assert torch.allclose(a, b, atol=1e-4), name
    resumed = Trainer(
        architectures.make_model("llama", seed=9), arguments(folder),
        train_dataset=Tokens(), wrap=SMALL)
    resumed.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-3"))
    assert losses_of(resumed) == losses_of(ours), (
        losses_of(resumed), losses_of(ours))


def accelerators(world):
    from tessera.integrations.accelerate import Accelerator
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, wrap=SMALL)
    plain = make_net()
    model = copy.deepcopy(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    wrapped, engines = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for step in range(3):
        for micro in range(2):
            with accelerator.accumulate(wrapped):
                accelerator.backward(
                    loss_of(wrapped, ids_of(2 * step + micro, world.rank)))
                accelerator.clip_grad_norm_(wrapped.parameters(), 0.5)
                engines.step()
                engines.zero_grad()
            for rank in range(world.size):
                (loss_of(plain, ids_of(2 * step + micro, rank)) / 2
                 / world.size).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    state = accelerator.get_state_dict(wrapped)
    assert bool(state) == (world.rank == 0)
    for name, value in state.items():
        if name != "seen":
            assert torch.allclose(
                value, plain.state_dict()[name], atol=2e-5), name


def adapters(world):
    """A LoRA model of PEFT: only the adapter is trained and has state."""
    import peft
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"],
        init_lora_weights=False)
    torch.manual_seed(0)
    plain = peft.get_peft_model(architectures.make_model("llama"), config)
    model = copy.deepcopy(plain)
    engine = tessera.wrap(
        model, optimizer={"type": "adamw", "lr": 0.01, "weight_decay": 0.0},
        **SMALL)
    optimizer = torch.optim.AdamW(
        [p for p in plain.parameters() if p.requires_grad], lr=0.01,
        weight_decay=0.0)
    for step in range(3):
        for rank in range(world.size):
            loss = architectures.loss_of(
                plain, architectures.make_batch("llama", 10 * step + rank), 0)
            (loss / world.size).backward()
            if rank == world.rank:
                want = loss.item()
        got = architectures.loss_of(
            model, architectures.make_batch("llama", 10 * step + world.rank), 0)
        assert abs(got.item() - want) < 1e-5, (step, got, want)
        engine.backward(got)
        engine.step()
        optimizer.step()
        optimizer.zero_grad()
    plan = engine.memory_plan["device"]
    assert plan["optimizer state"] < plan["parameters"], plan
    folder = os.path.join(shared_folder(), "adapter")
    state = engine.state_dict()
    if world.rank == 0:
        model.save_pretrained(folder, state_dict=state)
        again = peft.PeftModel.from_pretrained(
            architectures.make_model("llama"), folder)
        batch = architectures.make_batch("llama", 77)
        a = architectures.loss_of(again.train(), batch, 0).item()
        b = architectures.loss_of(plain, batch, 0).item()
        assert abs(a - b) < 1e-5, (a, b)


if __name__ == "__main__":
    main([optimizers_and_schedules, adapters, trainers, accelerators])

# SPDX-License-Identifier: Apache-2.0
"""Accelerate, transformers.Trainer, PEFT and torch's schedules, beside the same
without the engine."""
import copy
import os
import re
import shutil
import warnings

import accelerate
import torch
import transformers

import architectures
import tessera
from ranks import (
    SMALL, ids_of, loss_of, main, make_net, raises, shared_folder, train_plain)
from tessera.torch_optimizer import _patterns_of


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
    raises(lambda: tessera.wrap(
        make_net(), optimizer=torch.optim.Adagrad(make_net().parameters())),
        "Adagrad")
    other = make_net()
    raises(lambda: tessera.wrap(other, optimizer=torch.optim.SGD(
        other.blocks.parameters(), lr=0.1)), "embed.weight", "requires_grad_")


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / 3))


def one_cycle(optimizer):
    """Rates and momentum, or the first beta."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [0.03] * len(optimizer.param_groups), total_steps=14)


def for_each_group(optimizer):
    """Rates whose ratios change, one of them from 0."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        [lambda step, i=i: step / (3 + i) if i < 2 else 1 / (step + 1)
         for i in range(len(optimizer.param_groups))])


class ByHand:
    """Sets all that a group has, as loops do that have no schedule."""

    def __init__(self, optimizer):
        self._groups = optimizer.param_groups
        self._steps = 0

    def step(self):
        self._steps += 1
        for i, group in enumerate(self._groups):
            group["weight_decay"] = 0.3 * (i + 1) / self._steps
            if "betas" in group:
                group["betas"] = (0.5 + 0.04 * self._steps, 0.99)
                group["eps"] = 1e-3 * self._steps
            else:
                group["dampening"] = 0.05 * self._steps
                group["momentum"] = 0.5 + 0.04 * self._steps


def adamw(model):
    return torch.optim.AdamW(groups_of(model), lr=0.01)


def adam(model):
    return torch.optim.Adam(groups_of(model), lr=0.01)


def decoupled_adam(model):
    return torch.optim.Adam(
        groups_of(model), lr=0.01, decoupled_weight_decay=True)


def sgd(model):
    return torch.optim.SGD(groups_of(model), lr=0.1, momentum=0.9)


def partly_momentum(model):
    """Groups whose state differs."""
    groups = groups_of(model)
    groups[1]["momentum"] = 0.9
    return torch.optim.SGD(groups, lr=0.1)


def check_schedule(world, make, schedule, before_wrap, **config):
    """The engine beside plain PyTorch, over 8 steps.

    Three ranks and more add gradients in another order.
    """
    plain = make_net()
    model = copy.deepcopy(plain)
    start = copy.deepcopy(plain.state_dict())
    optimizer, given = make(plain), make(model)
    schedules = [schedule(optimizer)]
    if before_wrap:
        schedules.append(schedule(given))
    engine = tessera.wrap(model, config, optimizer=given, **SMALL)
    if not before_wrap:
        schedules.append(schedule(engine.optimizer))
    for step in range(8):
        train_plain(plain, optimizer, 1, world.size, first=step)
        engine.backward(loss_of(model, ids_of(step, world.rank)))
        if step % 2:
            engine.step()
        else:
            engine.optimizer.step()
        for one in schedules:
            one.step()
    for name, value in engine.state_dict().items():
        if name != "seen":
            want = plain.state_dict()[name]
            moved = (want - start[name]).abs().max()
            off = (value - want).abs().max()
            assert off <= 1e-3 * moved, (
                make.__name__, schedule.__name__, name, off, moved)


def schedules_of_groups(world):
    """All that a schedule changes in a group counts, whenever it was made."""
    with warnings.catch_warnings():
        # Of torch, if the steps of the given optimizer were not noticed.
        warnings.filterwarnings("error", "Detected call of")
        for before_wrap in (True, False):
            for make in (adamw, sgd):
                for schedule in (warm_up, one_cycle, for_each_group, ByHand):
                    check_schedule(world, make, schedule, before_wrap)
        for make in (adam, decoupled_adam, partly_momentum):
            check_schedule(world, make, warm_up, True)


def values_after_backward(world):
    """What is set between backward and step counts in this step, where backward
    has begun it with what was set before."""
    plain = make_net()
    model = copy.deepcopy(plain)
    optimizer = adamw(plain)
    engine = tessera.wrap(
        model, {"optimizer": {"overlap": "speculate"}}, optimizer=adamw(model),
        **SMALL)
    for step in range(6):
        for rank in range(world.size):
            (loss_of(plain, ids_of(step, rank)) / world.size).backward()
        engine.backward(loss_of(model, ids_of(step, world.rank)))
        for one in (optimizer, engine.optimizer):
            for group in one.param_groups:
                group["betas"] = (0.2 + 0.1 * step, 0.99)
                group["weight_decay"] = 0.5 * (step % 2)
            one.step()
            one.zero_grad()
    with engine.gather():
        for name, value in model.named_parameters():
            off = (value - dict(plain.named_parameters())[name]).abs().max()
            assert off < 1e-5, (name, off)


def step_hooks(world):
    model = make_net()
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    given.register_step_pre_hook(lambda *_: calls.append("given"))
    engine = tessera.wrap(model, optimizer=given, **SMALL)
    engine.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    engine.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for step in (engine.step, engine.optimizer.step):
        engine.backward(loss_of(model, ids_of(0, world.rank)))
        step()
    assert calls == 2 * ["given", "before", "after"], calls


def many_parameters(world):
    """More names than one regular expression may have."""
    model = torch.nn.ModuleDict({
        f"transformer_layer_number_{i}_self_attention_query":
            torch.nn.Linear(2, 2) for i in range(1100)})
    tessera.wrap(
        model, optimizer=torch.optim.AdamW(model.parameters()),
        log_memory=False)
    names = [name for name, _ in model.named_parameters()]
    found = set()
    for pattern in _patterns_of(names):
        assert len(pattern) <= 20000
        found.update(name for name in names if re.fullmatch(pattern, name))
    assert found == set(names)


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


def checkpoints_of_plain_trainers(world):
    """Their weights, groups and schedules are continued; that moments are not
    is said."""
    from tessera.integrations.transformers import Trainer
    folder = os.path.join(shared_folder(), "plain_trainer")
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)

    def rates(trainer):
        return [entry["learning_rate"] for entry in trainer.state.log_history
                if "learning_rate" in entry]

    for optim in ("sgd", "adamw_torch"):
        plain = transformers.Trainer(
            architectures.make_model("llama"),
            arguments(os.path.join(folder, optim), optim=optim),
            train_dataset=Tokens())
        plain.train()
        checkpoint = os.path.join(folder, optim, "checkpoint-3")
        ours = Trainer(
            architectures.make_model("llama", seed=9),
            arguments(os.path.join(folder, optim), optim=optim),
            train_dataset=Tokens(), wrap=SMALL)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours.train(resume_from_checkpoint=checkpoint)
        said = [str(one.message) for one in caught
                if "moments begin anew" in str(one.message)]
        assert len(said) == (optim != "sgd" and world.rank == 0), said
        assert rates(ours) == rates(plain), (rates(ours), rates(plain))
        if optim == "sgd":  # which has no moments
            for got, want in zip(losses_of(ours), losses_of(plain)):
                assert abs(got - want) < 2e-3, (
                    losses_of(ours), losses_of(plain))
    # As the best one of a run that was resumed, and with a model in use.
    ours.state.best_model_checkpoint = checkpoint
    ours._load_best_model()
    state = ours.engine.state_dict()
    if world.rank == 0:
        best = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        for name, value in best.state_dict().items():
            assert torch.equal(state[name], value), name


class Loaded(transformers.TrainerCallback):
    """The weights with which training begins."""

    def on_train_begin(self, args, state, control, **options):
        self.state = self.trainer.engine.state_dict()
        control.should_training_stop = True


def weights_of_checkpoints(world):
    """Files whose names and layouts are not the module's, without the engine's
    checkpoint: resumed, and as the best, as from_pretrained() loads them.
    What a file lacks is an error."""
    import safetensors.torch
    from tessera.integrations.transformers import Trainer
    folder = os.path.join(shared_folder(), "weights")
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)

    def make(seed=9, **values):
        return Trainer(
            architectures.make_model("qwen3_moe", seed=seed),
            arguments(folder, **values), train_dataset=Tokens(), wrap=SMALL)
    saver = make(seed=1, save_only_model=True)
    saver.train()
    checkpoint = os.path.join(folder, "checkpoint-3")
    assert not os.path.exists(os.path.join(checkpoint, "tessera"))
    want = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    names = safetensors.torch.load_file(checkpoint + "/model.safetensors")
    experts = [name for name in names if "experts" in name]
    assert experts and not set(experts) & set(want.state_dict())

    def check(state):
        if world.rank == 0:
            for name, value in want.state_dict().items():
                assert torch.equal(state[name], value), name
    resumed = make()
    loaded = Loaded()
    loaded.trainer = resumed
    resumed.add_callback(loaded)
    resumed.train(resume_from_checkpoint=checkpoint)
    check(loaded.state)
    saver.state.best_model_checkpoint = checkpoint
    saver._load_best_model()
    check(saver.engine.state_dict())

    # One expert is not there, of a model that a pretrained one was.
    lacking = os.path.join(folder, "lacking")
    if world.rank == 0:
        shutil.copytree(checkpoint, lacking)
        safetensors.torch.save_file(
            {name: value for name, value in names.items()
             if "lm_head" not in name}, lacking + "/model.safetensors",
            {"format": "pt"})
    saver.engine.sum_over_ranks(torch.zeros(1))  # it is there
    raises(lambda: make().train(resume_from_checkpoint=lacking),
           lacking, "lm_head.weight", "from_pretrained()")
    # And of a module of one's own, which the Trainer saves by its names.
    other = Trainer(Normed(), arguments(folder + "2", save_only_model=True),
                    train_dataset=Tokens(), wrap=SMALL)
    other.train()
    checkpoint = os.path.join(folder + "2", "checkpoint-3")
    saved = os.path.join(checkpoint, "model.safetensors")
    other.state.best_model_checkpoint = checkpoint
    other._load_best_model()
    state = other.engine.state_dict()
    if world.rank == 0:
        values = safetensors.torch.load_file(saved)
        for name, value in values.items():
            assert torch.equal(state[name], value), name
        del values["norm.running_mean"]
        safetensors.torch.save_file(values, saved)
    other.engine.sum_over_ranks(torch.zeros(1))
    raises(other._load_best_model, "norm.running_mean")


class Normed(torch.nn.Module):
    """A model of a Trainer, with running statistics."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(96, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 96)

    def forward(self, input_ids, labels):
        x = self.norm(self.embed(input_ids).flatten(0, 1))
        return {"loss": torch.nn.functional.cross_entropy(
            self.head(x), labels.flatten())}


def running_statistics_of_trainers(world):
    """evaluate() scores the model that is saved: with those of rank 0. The
    best checkpoint brings its weights, and not its rates."""
    from tessera.integrations.transformers import Trainer
    folder = os.path.join(shared_folder(), "statistics")
    torch.manual_seed(0)
    trainer = Trainer(
        Normed(), arguments(folder),
        train_dataset=Tokens(), eval_dataset=Tokens(), wrap=SMALL)
    trainer.train()
    mean = trainer.engine.module.norm.running_mean

    def is_shared():
        total = mean.double()
        trainer.engine.sum_over_ranks(total)
        return torch.equal(total / world.size, mean.double())
    assert is_shared() == (world.size == 1)
    first = mean.clone()
    trainer.evaluate()
    assert is_shared()
    assert torch.equal(mean, first) == (world.rank == 0)
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    trainer.state.best_model_checkpoint = os.path.join(folder, "checkpoint-3")
    trainer._load_best_model()
    assert rates == [group["lr"] for group in trainer.optimizer.param_groups]
    trainer.engine.unwrap()
    trainer.evaluate()


def running_statistics_of_accelerators(world):
    """A forward after eval() scores with rank 0's, as accelerate's does; one in
    gather() is of one rank."""
    from tessera.integrations.accelerate import Accelerator
    torch.manual_seed(0)
    model = Normed()
    accelerator = Accelerator(wrap=SMALL, cpu=True)
    model, optimizer = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01))
    engine = accelerator.engine

    def train(step):
        model.train()
        ids = 1 + 3 * ids_of(step, world.rank) // 2
        accelerator.backward(model(ids, ids)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    mean = model.norm.running_mean
    for step in range(2):  # again after the first evaluation
        train(step)
        with torch.no_grad(), engine.gather():
            model.eval()
            if world.rank == 0:
                model(ids_of(0, 0), ids_of(0, 0))
            copied = copy.deepcopy(model)
        first = mean.clone()
        ids = ids_of(5, 0)
        with torch.no_grad():
            loss = model(ids, ids)["loss"]
            want = loss.double()
            engine.sum_over_ranks(want)
            assert torch.equal(mean, first) == (world.rank == 0)
            assert abs(want / world.size - loss) < 1e-9, (want, loss)
            assert torch.equal(first, copied.norm.running_mean)
            copied(ids, ids)  # without the engine
        total = mean.double()
        engine.sum_over_ranks(total)
        assert torch.equal(total / world.size, mean.double())


def updates_in_backward_of_trainers(world):
    from tessera.integrations.transformers import Trainer
    folder = os.path.join(shared_folder(), "in_backward")

    def train(**options):
        values = arguments(folder, save_strategy="no")
        values.gradient_accumulation_steps = 1
        for name, value in options.items():
            setattr(values, name, value)
        trainer = Trainer(
            architectures.make_model("llama"), values, train_dataset=Tokens(),
            wrap={"update_in_backward": True, **SMALL})
        trainer.train()
        return losses_of(trainer)
    assert len(train(max_grad_norm=0)) == 6
    raises(lambda: train(max_grad_norm=0.5), "max_grad_norm is 0.5")


def options_of_wrap(world):
    from tessera.integrations.accelerate import Accelerator
    raises(lambda: Accelerator(
        cpu=True, wrap={"optimizer": {"type": "lion"}}), "optimizer: type",
        "TrainingArguments")
    accelerator = Accelerator(cpu=True, wrap={
        "optimizer": {"moment_dtype": "bfloat16"}, **SMALL})
    model = make_net()
    accelerator.prepare(model, adamw(model))
    plan = accelerator.engine.memory_plan["device"]
    assert plan["optimizer state"] < 1.2 * plan["parameters"], plan
    os.environ["ACCELERATE_DYNAMO_BACKEND"] = "EAGER"  # as by torch_compile
    accelerate.state.AcceleratorState._reset_state()
    try:
        raises(lambda: Accelerator(cpu=True, wrap=SMALL), "torch_compile")
    finally:
        del os.environ["ACCELERATE_DYNAMO_BACKEND"]
        accelerate.state.AcceleratorState._reset_state()


class Rows(torch.utils.data.Dataset):
    """Batches of one: rank r of n gets the rows r, r + n, ..."""

    def __init__(self, batches, size):
        self._batches = batches
        self._size = size

    def __len__(self):
        return self._batches * self._size

    def __getitem__(self, index):
        return ids_of(index // self._size, index % self._size)


def accelerators(world):
    """A loop as in the *_no_trainer.py scripts of transformers."""
    from tessera.integrations.accelerate import Accelerator
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, wrap=SMALL)
    plain = make_net()
    model = copy.deepcopy(plain)
    optimizer, given = adamw(plain), adamw(model)
    schedule = warm_up(optimizer)
    loader = torch.utils.data.DataLoader(Rows(10, world.size))
    wrapped, engines, batches, scheduled = accelerator.prepare(
        model, given, loader, warm_up(given))
    for ids in batches:
        with accelerator.accumulate(wrapped):
            accelerator.backward(loss_of(wrapped, ids[0]))
            accelerator.clip_grad_norm_(wrapped.parameters(), 0.5)
            engines.step()
            scheduled.step()
            engines.zero_grad()
    for step in range(5):
        for micro in range(2):
            for rank in range(world.size):
                (loss_of(plain, ids_of(2 * step + micro, rank)) / 2
                 / world.size).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(world.size):  # as the schedules that are prepared
            schedule.step()
    assert scheduled.get_last_lr() == schedule.get_last_lr()
    state = accelerator.get_state_dict(wrapped)
    assert bool(state) == (world.rank == 0)
    for name, value in state.items():
        if name != "seen":
            want = plain.state_dict()[name]
            assert (want - make_net().state_dict()[name]).abs().max() > 1e-3
            assert torch.allclose(value, want, atol=2e-5), name
    other = make_net()
    raises(lambda: accelerator.prepare(
        other, torch.optim.AdamW(other.parameters())), "another model")
    sampler = tessera.BatchSampler(10 * world.size, 1)
    raises(lambda: accelerator.prepare(torch.utils.data.DataLoader(
        Rows(10, world.size), batch_sampler=sampler)), "this rank's")


def clipping_of_accelerators(world):
    """What is clipped is what is given, and the norm is returned always."""
    from tessera.integrations.accelerate import Accelerator
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, wrap=SMALL)
    model = make_net()
    model.blocks[0].requires_grad_(False)
    wrapped, engines = accelerator.prepare(model, torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1))
    other = torch.nn.Linear(2, 2)
    other(torch.full((1, 2), 3.0)).sum().backward()
    for micro in range(2):
        with accelerator.accumulate(wrapped):
            accelerator.backward(loss_of(wrapped, ids_of(micro, world.rank)))
            for part, text in (
                    ([*model.head.parameters()], "without blocks.1.down.bias"),
                    (model.head.bias, "without blocks.1.down.bias"),
                    ([*model.parameters(), *other.parameters()],
                     "which the engine does not train")):
                raises(lambda: accelerator.clip_grad_norm_(part, 0.5),
                       "clip_grad_norm_", text, "model.parameters()")
                raises(lambda: accelerator.clip_grad_value_(part, 0.5), text)
            # A module of its own, as that of another optimizer.
            want = torch.nn.utils.get_total_norm(
                [p.grad for p in other.parameters()])
            assert accelerator.clip_grad_norm_(
                other.parameters(), 100.0) == want
            before = accelerator.engine.grad_norm()
            norm = accelerator.clip_grad_norm_(
                (p for p in wrapped.parameters() if p.requires_grad), 0.01)
            assert abs(norm.item() - before) < 1e-6, (norm, before)
            engines.step()
            engines.zero_grad()
    # As set_adapter() of PEFT: it can have no gradient, and may be left out.
    model.head.bias.requires_grad_(False)
    assert accelerator.clip_grad_norm_(
        [p for p in wrapped.parameters() if p.requires_grad],
        float("inf")).item() == 0


class Saved:
    """As the hooks of diffusers' scripts: the model in its own format."""

    def __init__(self, accelerator, folder):
        self._is_main = accelerator.is_main_process
        accelerator.register_save_state_pre_hook(self.save)
        accelerator.register_load_state_pre_hook(self.load)
        self._path = os.path.join(folder, "model.pt")

    def save(self, models, weights, folder):
        assert len(models) == len(weights) == 1
        for name, value in weights.pop().items():
            assert torch.equal(value, models[0].state_dict()[name]), name
        if self._is_main:
            torch.save(models[0].state_dict(), self._path)
        self.saved = folder

    def load(self, models, folder):
        models.pop().load_state_dict(torch.load(self._path))
        self.loaded = folder


def states_of_accelerators(world):
    """save_state() names folders, and calls hooks, as accelerate does."""
    from tessera.integrations.accelerate import Accelerator
    folder = os.path.join(shared_folder(), "project")
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)

    def prepared(**options):
        accelerator = Accelerator(
            cpu=True, wrap={**SMALL, "precision": {"parameters": "bfloat16"}},
            project_config=accelerate.utils.ProjectConfiguration(
                project_dir=folder, total_limit=2,
                automatic_checkpoint_naming=True))
        model = make_net()
        accelerator.prepare(model, torch.optim.SGD(
            model.parameters(), **options))
        return accelerator

    def step(accelerator, number):
        accelerator.backward(loss_of(
            accelerator.engine.module, ids_of(number, world.rank)))
        accelerator.engine.step()

    accelerator = prepared(lr=0.1, momentum=0.9)
    hooks = Saved(accelerator, folder)
    for number in range(3):
        step(accelerator, number)
        accelerator.save_state()
    last = os.path.join(folder, "checkpoints", "checkpoint_2")
    assert hooks.saved == last
    assert sorted(os.listdir(os.path.dirname(last))) == [
        "checkpoint_1", "checkpoint_2"]
    step(accelerator, 3)
    resumed = prepared(lr=0.1, momentum=0.9)
    hooks = Saved(resumed, folder)
    resumed.load_state()
    assert hooks.loaded == last
    step(resumed, 3)
    # To the last bit of the master weights, which the hook has not got.
    got = resumed.engine.state_dict()
    for name, value in accelerator.engine.state_dict().items():
        assert torch.equal(got[name], value), name
    raises(lambda: accelerator.save_state(safe_serialization=False),
           "safe_serialization")
    raises(lambda: accelerator.load_state(last, map_location="cpu"),
           "map_location")
    resumed.project_configuration.iteration = 2
    raises(resumed.save_state, "checkpoint_2 exists already", "iteration")
    other = Accelerator(cpu=True, wrap=SMALL)
    model = make_net()
    other.prepare(model, adamw(model))
    raises(other.save_state, "output_dir")
    raises(other.load_state, "pass the folder")


def all_schedules(world):
    """The states of torch's schedules, those with infinities too."""
    lr = torch.optim.lr_scheduler
    for number, make in enumerate((
            lr.ReduceLROnPlateau, warm_up, one_cycle,
            lambda one: lr.MultiStepLR(one, [2, 2, 4]),
            lambda one: lr.CyclicLR(one, 0.01, 0.1, cycle_momentum=False),
            lambda one: lr.CosineAnnealingWarmRestarts(one, 3),
            lambda one: lr.PolynomialLR(one, 9),
            lambda one: lr.ChainedScheduler(
                [lr.ConstantLR(one), lr.ExponentialLR(one, 0.9)]),
            lambda one: torch.optim.swa_utils.SWALR(one, 0.05),
            lambda one: lr.SequentialLR(
                one, [lr.LinearLR(one), lr.CosineAnnealingLR(one, 9)], [3]))):
        folder = os.path.join(shared_folder(), f"schedule{number}")
        rates = []
        for resumes in (False, True):
            model = make_net()
            engine = tessera.wrap(model, optimizer=torch.optim.SGD(
                model.parameters(), lr=0.1, momentum=0.9), **SMALL)
            schedule = make(engine.optimizer)
            arguments = [1.0] * isinstance(schedule, lr.ReduceLROnPlateau)
            if resumes:
                engine.load(folder, [schedule])
            else:
                for step in range(2):
                    engine.backward(loss_of(model, ids_of(step, world.rank)))
                    engine.step()
                    schedule.step(*arguments)
                engine.save(folder, [schedule])
            rates.append([])
            for _ in range(14 - 2):
                engine.optimizer._opt_called = True
                schedule.step(*arguments)
                rates[-1].append(engine.learning_rate)
        assert rates[0] == rates[1], (number, rates)


def rates_of_checkpoints(world):
    """Of options into groups, and the other way round."""
    folder = os.path.join(shared_folder(), "rates")
    engine = tessera.wrap(
        make_net(), optimizer={"type": "adamw", "lr": 0.25}, **SMALL)
    engine.learning_rate = 0.125
    engine.backward(loss_of(engine.module, ids_of(0, world.rank)))
    engine.step()
    engine.save(folder)
    model = make_net()
    other = tessera.wrap(model, optimizer=adamw(model), **SMALL)
    other.load(folder)
    rates = [group["lr"] for group in other.optimizer.param_groups]
    assert rates == [0.125, 0.125, 0.125 * 0.002 / 0.01], rates
    assert other.learning_rate == 0.125
    other.optimizer.param_groups[1]["lr"] = 0.5
    other.backward(loss_of(model, ids_of(1, world.rank)))
    other.step()
    other.save(folder + "2")
    engine.load(folder + "2")
    assert engine.learning_rate == 0.5
    again = tessera.wrap(
        again_model := make_net(), optimizer=adamw(again_model), **SMALL)
    again.load(folder + "2")
    assert [group["lr"] for group in again.optimizer.param_groups] == [
        0.125, 0.5, 0.125 * 0.002 / 0.01]


def adapted_twins(config):
    """A LLaMA with the adapter twice, plain and wrapped, each with AdamW."""
    import peft
    torch.manual_seed(0)
    plain = peft.get_peft_model(architectures.make_model("llama"), config)
    model = copy.deepcopy(plain)
    engine = tessera.wrap(
        model, optimizer={"type": "adamw", "lr": 0.01, "weight_decay": 0.0},
        **SMALL)
    optimizer = torch.optim.AdamW(
        [p for p in plain.parameters() if p.requires_grad], lr=0.01,
        weight_decay=0.0)
    return plain, optimizer, model, engine


def adapters(world):
    """A LoRA model of PEFT: only the adapter is trained and has state."""
    import peft
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"],
        init_lora_weights=False)
    plain, optimizer, model, engine = adapted_twins(config)
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


def adapters_that_read_gradients(world):
    """AdaLoRA of PEFT divides ranks among adapters by their gradients, and
    masks them: as without the engine, by the manual's loop."""
    import peft
    config = peft.AdaLoraConfig(
        init_r=4, target_r=2, tinit=1, tfinal=2, deltaT=1, total_step=6,
        target_modules=["q_proj", "v_proj"])
    plain, optimizer, model, engine = adapted_twins(config)
    for step in range(6):
        for rank in range(world.size):
            loss = architectures.loss_of(
                plain, architectures.make_batch("llama", 10 * step + rank), 0)
            (loss / world.size).backward()
        optimizer.step()
        plain.base_model.update_and_allocate(step)
        optimizer.zero_grad()

        engine.backward(architectures.loss_of(
            model, architectures.make_batch("llama", 10 * step + world.rank),
            0))
        if step == 0:
            raises(lambda: model.base_model.update_and_allocate(0),
                   "p.grad", "engine.gather()", "engine.grad(p)")
        gradients = [(p, engine.grad(p)) for p in engine.trained_parameters]
        engine.step()
        with engine.gather(writable=True):
            for p, gradient in gradients:
                p.grad = gradient
            model.base_model.update_and_allocate(step)
            for p, _ in gradients:
                p.grad = None
    state = engine.state_dict()
    if world.rank == 0:
        masked = 0
        for name, value in plain.state_dict().items():
            assert torch.allclose(state[name], value, atol=1e-5), name
            if "lora_E" in name:
                masked += int((value == 0).sum())
        assert masked > 0


def prompts(world):
    """A checkpoint of a prompt's encoder, which PEFT runs to save it, on the
    rank that writes: the run goes on, and the file has the prompt."""
    import peft
    from tessera.integrations.transformers import Trainer
    torch.manual_seed(0)
    model = peft.get_peft_model(
        architectures.make_model("llama"),
        peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    folder = os.path.join(shared_folder(), "prompts")
    trainer = Trainer(
        model, arguments(folder), train_dataset=Tokens(), wrap=SMALL)
    trainer.train()
    trainer.save_model(folder + "/last")
    trained = trainer.engine.state_dict()
    if world.rank == 0:
        again = peft.PeftModel.from_pretrained(
            architectures.make_model("llama"), folder + "/last")
        name, = (name for name in trained if "prompt_encoder" in name)
        assert torch.equal(again.state_dict()[name], trained[name])


if __name__ == "__main__":
    main([optimizers_and_schedules, schedules_of_groups, values_after_backward,
          step_hooks, many_parameters, adapters, trainers,
          checkpoints_of_plain_trainers, weights_of_checkpoints, accelerators,
          clipping_of_accelerators, states_of_accelerators, all_schedules,
          rates_of_checkpoints, running_statistics_of_trainers,
          running_statistics_of_accelerators,
          updates_in_backward_of_trainers, options_of_wrap, prompts,
          adapters_that_read_gradients])

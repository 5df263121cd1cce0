# SPDX-License-Identifier: Apache-2.0
"""An accelerate.Accelerator whose models are wrapped by the engine.

    from tessera.integrations.accelerate import Accelerator

    accelerator = Accelerator(wrap={"zero_stage": 3})
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, loader, schedule)
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

Start it by torchrun, `accelerate launch --multi_cpu / --multi_gpu` or `tessera
launch`.
"""
import contextlib
import glob
import json
import os
import re
import shutil

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DynamoBackend

from tessera import _C
from tessera.engine import wrap as wrap_model
from tessera.job import init
from tessera.sampler import BatchSampler


def save_only(engine, folder, states=()):
    """Saves into a folder that is for one checkpoint: as Accelerate and
    transformers do, it takes the place of what another run has left there."""
    if init().rank == 0:
        for manifest in glob.glob(os.path.join(
                glob.escape(folder), "step-*", "manifest.json")):
            with open(manifest, encoding="utf-8") as file:
                lineage = json.load(file).get("lineage")
            if lineage != engine.lineage:
                shutil.rmtree(os.path.dirname(manifest))
    return engine.save(folder, states, keep_last=1)


def _check_optimizer_options(options):
    if options is None:
        return
    given = {"type", "lr", "weight_decay", "betas", "eps", "momentum",
             "dampening", "nesterov", "parameters"}
    if not isinstance(options, dict) or given & set(options):
        found = ", ".join(sorted(given & set(options))) \
            if isinstance(options, dict) else type(options).__name__
        raise _C.Error(
            f"wrap: optimizer: {found} given; these are those of the optimizer "
            "that prepare() gets, an AdamW, Adam or SGD of torch (Trainer: "
            "TrainingArguments' optim, adamw_torch or sgd, and their rates). "
            "With another one of the engine's optimizers, call tessera.wrap() "
            "in a loop of your own.")


def _refuse_options(caller, options):
    if options:
        raise _C.Error(
            f"{caller}: {', '.join(options)} given, which is for other formats "
            "than the engine's checkpoints; leave it out.")


def _list_of(parameters):
    return [parameters] if isinstance(parameters, torch.Tensor) \
        else list(parameters)


def _some(names):
    return f"{', '.join(sorted(names)[:5])}{' ...' * (len(names) > 5)}"


class _Optimizer(AcceleratedOptimizer):
    """Steps only where the Accelerator has collected all micro-batches."""

    def __init__(self, optimizer):
        super().__init__(optimizer, device_placement=False)

    @property
    def step_was_skipped(self):
        return self.optimizer.step_was_skipped


class _SharedBuffers:
    """A hook before a model's forward: the first one in evaluation mode after
    training gives all ranks rank 0's buffers, as DistributedDataParallel does,
    so that scores are those of what is saved. Not inside gather(), where one
    rank may evaluate alone."""

    def __init__(self, engine=None):
        self._engine = engine
        self._are_shared = False

    def __call__(self, module, _inputs):
        if module.training:
            self._are_shared = False
        elif not self._are_shared and self._engine is not None and not (
                self._engine.is_unwrapped or self._engine._guard.is_lifted):
            self._engine.broadcast_buffers()
            self._are_shared = True

    def __reduce__(self):
        return _SharedBuffers, ()  # copies of the model have no engine


class Accelerator(accelerate.Accelerator):
    """Prepares one model with its optimizer; other objects as usual.

    A model that is prepared without an optimizer, as one that only teaches, is
    accelerate's: `wrap` has no effect on it, and under a launcher it is in a
    DistributedDataParallel. step() drops gradients, as zero_grad() does. The
    first forward of the prepared model after eval() is collective where it has
    buffers, such as running statistics: all ranks then have rank 0's.

    wrap: options of tessera.wrap(); those of `optimizer` that the optimizer
        given to prepare() does not have, such as moment_dtype.
    """

    def __init__(self, *arguments, wrap=None, **options):
        super().__init__(*arguments, **options)
        if self.scaler is not None:
            raise _C.Error(
                "Accelerator: mixed_precision='fp16' scales losses twice; "
                "leave it out, and pass wrap={'precision': {'parameters': "
                "'float16'}}.")
        backend = self.state.dynamo_plugin.backend
        if backend != DynamoBackend.NO:
            raise _C.Error(
                f"Accelerator: dynamo_backend={backend.value.lower()!r} "
                "(TrainingArguments: torch_compile) compiles the model, and the "
                "engine cannot shard it then; leave it out.")
        self._wrap_options = dict(wrap or {})
        self._optimizer_options = self._wrap_options.pop("optimizer", None)
        _check_optimizer_options(self._optimizer_options)
        self.engine = None

    def prepare(self, *objects, device_placement=None):
        models = [one for one in objects if isinstance(one, torch.nn.Module)]
        optimizers = [one for one in objects
                      if isinstance(one, torch.optim.Optimizer)]
        if not optimizers:
            return super().prepare(*objects, device_placement=device_placement)
        if len(models) != 1 or len(optimizers) != 1:
            raise _C.Error(
                f"prepare: {len(models)} models and {len(optimizers)} "
                "optimizers; the engine's optimizer is that of one model: "
                "prepare them together, one of each.")
        # Placed and under autocast, but in no other wrapper.
        model = self.prepare_model(models[0], evaluation_mode=True)
        optimizer = self._prepare_engine(model, optimizers[0])
        for one in (model, optimizer):
            one._is_accelerate_prepared = True
        others = [one for one in objects
                  if one is not models[0] and one is not optimizers[0]]
        prepared = iter(
            [super(Accelerator, self).prepare(one) for one in others])
        result = [model if one is models[0] else
                  optimizer if one is optimizers[0] else next(prepared)
                  for one in objects]
        return result[0] if len(result) == 1 else tuple(result)

    def _prepare_engine(self, model, optimizer):
        if self.engine is not None and model is self.engine.module and (
                getattr(optimizer, "optimizer", None) is self.engine.optimizer):
            # Once more, as in each Trainer.train(), which frees them first.
            return self.prepare_optimizer(optimizer)
        if self._optimizers:
            raise _C.Error(
                "prepare: this Accelerator trains another model; make one for "
                "each, or call free_memory() first.")
        options = dict(self._wrap_options)
        if self._optimizer_options:
            if "config" in options:
                raise _C.Error(
                    "wrap: config and optimizer are both given; put the "
                    "options of `optimizer` into the configuration.")
            # Those of `optimizer` are merged into them.
            options["config"] = {"optimizer": self._optimizer_options}
        self.engine = wrap_model(model, optimizer=optimizer, **options)
        model.register_forward_pre_hook(_SharedBuffers(self.engine))
        optimizer = _Optimizer(self.engine.optimizer)
        self._optimizers.append(optimizer)
        return optimizer

    def prepare_data_loader(self, data_loader, *arguments, **options):
        if isinstance(data_loader.batch_sampler, BatchSampler):
            raise _C.Error(
                "prepare: the loader's tessera.BatchSampler has this rank's "
                "batches already; do not pass the loader to prepare(), and move "
                "batches to accelerator.device.")
        return super().prepare_data_loader(data_loader, *arguments, **options)

    def backward(self, loss, **options):
        if self.engine is None:
            super().backward(loss, **options)
        else:
            self.engine.backward(loss / self.gradient_accumulation_steps)

    def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
        """Clips once a step, when all micro-batches are collected, and returns
        the norm before. `parameters` are all that the engine trains, or of
        another model."""
        parameters = _list_of(parameters)
        if not self._are_trained("clip_grad_norm_", parameters):
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        norm = self.engine.clip_grad_norm(max_norm, norm_type) \
            if self.sync_gradients and max_norm != float("inf") \
            else self.engine.grad_norm(norm_type)
        return torch.tensor(norm, device=self.engine.device)

    def clip_grad_value_(self, parameters, clip_value):
        parameters = _list_of(parameters)
        if not self._are_trained("clip_grad_value_", parameters):
            super().clip_grad_value_(parameters, clip_value)
        elif self.sync_gradients:
            self.engine.clip_grad_value(clip_value)

    def _are_trained(self, caller, parameters):
        """Whether `parameters` are those that the engine trains; False if none
        of them is."""
        if self.engine is None:
            return False
        given = {id(one) for one in parameters}
        trained = {id(one): one for one in self.engine.trained_parameters}
        if not given & trained.keys():
            return False
        names = {id(one): name for name, one in
                 self.engine.module.named_parameters()}
        # Those that were frozen since have nothing to clip, as adapters of PEFT
        # that are not active.
        left_out = [names.get(number, "?") for number, one in trained.items()
                    if number not in given
                    and (one.requires_grad or one.grad is not None)]
        # Others may be there without a gradient, as frozen ones.
        others = [names.get(id(one), f"one of shape {list(one.shape)}")
                  for one in parameters
                  if id(one) not in trained and one.grad is not None]
        if left_out or others:
            what = f"without {_some(left_out)}" if left_out else \
                f"with {_some(others)}, which the engine does not train"
            raise _C.Error(
                f"{caller}: parameters are given {what}; the engine clips all "
                "that it trains, with one limit. Pass model.parameters().")
        return True

    @contextlib.contextmanager
    def no_sync(self, model):
        # Gradients are reduced into shards, which takes less memory.
        yield

    def get_state_dict(self, model, unwrap=True):
        """Of the engine's model: whole on the main process, else empty."""
        if self.engine is None or self.unwrap_model(
                model) is not self.unwrap_model(self.engine.module):
            return super().get_state_dict(model, unwrap)
        return self.engine.state_dict()

    def save_state(self, output_dir=None, safe_serialization=True, **options):
        """Writes a checkpoint of the engine, with registered objects.

        Hooks of register_save_state_pre_hook() are called while the model is
        gathered, so that they can save it as a whole; their weights are its
        state_dict().
        """
        if self.engine is None:
            return super().save_state(output_dir, safe_serialization, **options)
        if not safe_serialization:
            options["safe_serialization"] = safe_serialization
        _refuse_options("save_state", options)
        project = self.project_configuration
        if project.automatic_checkpoint_naming:
            output_dir = self._next_folder()
        elif output_dir is None:
            raise _C.Error(
                "save_state: no output_dir is given; pass one, or "
                "ProjectConfiguration(automatic_checkpoint_naming=True).")
        if self._save_model_state_pre_hook:
            os.makedirs(output_dir, exist_ok=True)
            with self.engine.gather():
                weights = [one.state_dict() for one in self._models]
                for hook in self._save_model_state_pre_hook.values():
                    hook(list(self._models), weights, output_dir)
        saved = save_only(
            self.engine, os.path.join(output_dir, "tessera"), self._states())
        project.iteration += 1
        return str(saved)

    def load_state(self, input_dir=None, load_kwargs=None, **options):
        """Loads what save_state() has written.

        Hooks of register_load_state_pre_hook() are called afterwards, while the
        model is gathered: what they load into it takes its place.
        """
        if self.engine is None:
            super().load_state(input_dir, load_kwargs, **options)
            return
        if load_kwargs:
            options["load_kwargs"] = load_kwargs
        _refuse_options("load_state", options)
        if input_dir is None:
            folders = self._folders()
            if not folders:
                raise _C.Error(
                    "load_state: no input_dir is given, and "
                    f"{self._checkpoints() or 'no project_dir'} has no "
                    "checkpoint that was named automatically; pass the folder.")
            input_dir = folders[-1]
        self.engine.load(os.path.join(input_dir, "tessera"), self._states())
        if self._load_model_state_pre_hook:
            with self.engine.gather(writable=True):
                for hook in self._load_model_state_pre_hook.values():
                    hook(list(self._models), input_dir)

    def _checkpoints(self):
        """Where checkpoints are named automatically, as accelerate does it."""
        if not self.project_configuration.automatic_checkpoint_naming:
            return None
        return os.path.join(self.project_dir, "checkpoints")

    def _folders(self):
        """The checkpoints there, the latest last."""
        parent = self._checkpoints()
        if parent is None:
            return []
        by_number = {
            int(name.removeprefix("checkpoint_")): name
            for name in (os.listdir(parent) if os.path.isdir(parent) else ())
            if re.fullmatch("checkpoint_[0-9]+", name)}
        return [os.path.join(parent, by_number[number])
                for number in sorted(by_number)]

    def _next_folder(self):
        folder = os.path.join(
            self._checkpoints(), f"checkpoint_{self.save_iteration}")
        if os.path.exists(folder):
            raise _C.Error(
                f"save_state: {folder} exists already; set "
                "accelerator.project_configuration.iteration to the number of "
                "the next checkpoint.")
        limit = self.project_configuration.total_limit
        self.wait_for_everyone()  # all have looked for the folder
        if limit is not None and self.is_main_process:
            for old in self._folders()[:1 - limit or None]:
                shutil.rmtree(old)
        self.wait_for_everyone()
        return folder

    def _states(self):
        states = {f"object {i}": one
                  for i, one in enumerate(self._custom_objects)}
        states.update({f"schedule {i}": one
                       for i, one in enumerate(self._schedulers)})
        return states

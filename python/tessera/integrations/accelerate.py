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


class _Optimizer(AcceleratedOptimizer):
    """Steps only where the Accelerator has collected all micro-batches."""

    def __init__(self, optimizer):
        super().__init__(optimizer, device_placement=False)

    @property
    def step_was_skipped(self):
        return self.optimizer.step_was_skipped


class Accelerator(accelerate.Accelerator):
    """Prepares one model with its optimizer; other objects as usual.

    wrap: options of tessera.wrap(); those of `optimizer` that the optimizer
        given to prepare() does not have, such
        as moment_dtype.
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
        if self.engine is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        if not self.sync_gradients:
            return None
        norm = self.engine.grad_norm(norm_type) if max_norm == float("inf") \
            else self.engine.clip_grad_norm(max_norm, norm_type)
        return torch.tensor(norm, device=self.engine.device)

    def clip_grad_value_(self, parameters, clip_value):
        if self.engine is None:
            super().clip_grad_value_(parameters, clip_value)
        elif self.sync_gradients:
            self.engine.clip_grad_value(clip_value)

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

    def save_state(self, output_dir, **_options):
        """Writes a checkpoint of the engine, with registered objects."""
        return str(save_only(
            self.engine, os.path.join(output_dir, "tessera"), self._states()))

    def load_state(self, input_dir, **_options):
        self.engine.load(os.path.join(input_dir, "tessera"), self._states())

    def _states(self):
        states = {f"object {i}": one
                  for i, one in enumerate(self._custom_objects)}
        states.update({f"schedule {i}": one
                       for i, one in enumerate(self._schedulers)})
        return states

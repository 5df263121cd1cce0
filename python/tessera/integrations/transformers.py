# SPDX-License-Identifier: Apache-2.0
"""A transformers.Trainer whose model is wrapped by the engine.

    from tessera.integrations.transformers import Trainer

    trainer = Trainer(model, arguments, train_dataset=..., wrap={"zero_stage": 3})
    trainer.train()
    trainer.save_model("mine")  # from_pretrained() loads it

TrainingArguments, callbacks, datasets and metrics are as usual. Checkpoints
have the engine's in their folder tessera/, which loads under any number of
ranks.
"""
import contextlib
import inspect
import os
import warnings

import torch
import transformers
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME)

from tessera import _C
from tessera.integrations.accelerate import Accelerator, save_only
from tessera.torch_optimizer import has_moments


class Trainer(transformers.Trainer):
    """As transformers.Trainer.

    wrap: options of tessera.wrap(); optimizer and rates are those of the
        TrainingArguments (AdamW, Adam or SGD).
    """

    def __init__(self, *arguments, wrap=None, **options):
        self._wrap_options = wrap
        super().__init__(*arguments, **options)

    def create_accelerator_and_postprocess(self):
        # The base class names the class of its accelerator.
        usual = transformers.trainer.Accelerator
        transformers.trainer.Accelerator = self._new_accelerator
        try:
            super().create_accelerator_and_postprocess()
        finally:
            transformers.trainer.Accelerator = usual

    def _new_accelerator(self, **options):
        return Accelerator(wrap=self._wrap_options, **options)

    @property
    def engine(self):
        """The tessera.Engine, once training has begun; before it, None."""
        return self.accelerator.engine

    def _clip_grad_norm(self, model):
        if self.engine.updates_in_backward:
            raise _C.Error(
                f"Trainer: max_grad_norm is {self.args.max_grad_norm}, and "
                "update_in_backward keeps no gradients to clip; set "
                "max_grad_norm=0, or leave update_in_backward out.")
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model, grad_norm=None):
        if self.engine.updates_in_backward:
            return None  # the log has none: no gradients are kept
        return super()._get_grad_norm(model, grad_norm)

    def evaluation_loop(self, *arguments, **options):
        if self.engine is not None and not self.engine.is_unwrapped:
            # As in a DistributedDataParallel: scores are those of what is saved.
            self.engine.broadcast_buffers()
        return super().evaluation_loop(*arguments, **options)

    def save_model(self, output_dir=None, _internal_call=False):
        if self.engine is None:
            super().save_model(output_dir, _internal_call)
            return
        state = self.engine.state_dict()
        with self._prompt_encoder():
            if self.args.should_save:
                self._save(output_dir or self.args.output_dir, state_dict=state)

    def _prompt_encoder(self):
        """While it is open, one rank can run the prompt encoder of a model of
        PEFT, as its save_pretrained() does."""
        model = self.accelerator.unwrap_model(self.model)
        encoder = getattr(model, "prompt_encoder", None)
        return self.engine.gather(encoder) \
            if isinstance(encoder, torch.nn.Module) and any(
                True for _ in encoder.parameters()) \
            else contextlib.nullcontext()

    def _save_optimizer_and_scheduler(self, output_dir):
        save_only(self.engine, os.path.join(output_dir, "tessera"))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(),
                       os.path.join(output_dir, SCHEDULER_NAME))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        # The engine loads weights with their state, once there is one.
        if _has_engine_state(resume_from_checkpoint):
            return
        model = self.model if model is None else model
        if not self._load_pretrained(resume_from_checkpoint, model):
            with self._whole_model():
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_pretrained(self, checkpoint, model):
        """Loads weights of a transformers model as from_pretrained() does:
        names and layouts of files may differ from the module's. False if
        `checkpoint` has none of them, as that of another module or of PEFT."""
        if not _is_loaded_by_name_conversions(checkpoint, model):
            return False
        floating = [one.dtype for one in model.state_dict().values()
                    if one.is_floating_point()]
        with torch.random.fork_rng(devices=[]):
            loaded, info = type(model).from_pretrained(
                checkpoint, config=model.config, local_files_only=True,
                # Rounds nothing that the engine's master weights keep.
                dtype=torch.float64 if torch.float64 in floating
                else torch.float32, output_loading_info=True)
        _refuse_missing(checkpoint, info["missing_keys"])
        state = loaded.state_dict()
        if self.engine is None:
            model.load_state_dict(state)
        else:
            self.engine.load_state_dict(state)
        return True

    def _issue_warnings_after_load(self, load_result):
        # Of a module that the base class has loaded by its own names.
        own = self.model.state_dict(keep_vars=True)
        missing = set(load_result.missing_keys) - set(
            getattr(self.model, "_keys_to_ignore_on_save", None) or ())
        loaded = {id(value) for name, value in own.items()
                  if name not in load_result.missing_keys}
        _refuse_missing(
            "the checkpoint", [name for name in missing
                               if id(own.get(name)) not in loaded])
        super()._issue_warnings_after_load(load_result)

    def _whole_model(self):
        """While it is open, the model's own functions can load it."""
        return contextlib.nullcontext() if self.engine is None \
            else self.engine.gather(writable=True)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None:
            return
        if _has_engine_state(checkpoint):
            self.engine.load(os.path.join(checkpoint, "tessera"))
            self.lr_scheduler.load_state_dict(_load(checkpoint, SCHEDULER_NAME))
        else:
            self._load_plain_state(checkpoint)

    def _load_plain_state(self, checkpoint):
        """What transformers' own Trainer has saved, except for moments."""
        optimizer = self.engine.optimizer
        state = _load(checkpoint, OPTIMIZER_NAME)
        if state is not None:
            optimizer.load_state_dict({"param_groups": state["param_groups"]})
        schedule = _load(checkpoint, SCHEDULER_NAME)
        if schedule is not None:
            self.lr_scheduler.load_state_dict(schedule)
            if state is None:
                for group, rate in zip(optimizer.param_groups,
                                       self.lr_scheduler.get_last_lr()):
                    group["lr"] = rate
        lost = []
        if state is None or has_moments(state):
            lost.append("the optimizer's moments begin anew")
        if schedule is None:
            lost.append("the schedule begins anew")
        if lost and self.args.should_save:
            warnings.warn(
                f"{checkpoint} was saved by another Trainer than this one, "
                f"without a folder tessera/: {' and '.join(lost)}. To continue "
                "with them, finish the run with the Trainer that saved it.",
                stacklevel=2)

    def _load_best_model(self):
        best = self.state.best_model_checkpoint
        if _has_engine_state(best):
            groups = self.engine.optimizer.param_groups
            rates = [group["lr"] for group in groups]
            self.engine.load(os.path.join(best, "tessera"))
            for group, rate in zip(groups, rates):
                group["lr"] = rate  # those of the end, as without the engine
        # With save_only_model, or from before a run that was resumed.
        elif not self._load_pretrained(best, self.model):
            with self._whole_model():
                super()._load_best_model()


def _has_engine_state(checkpoint):
    return os.path.isdir(os.path.join(checkpoint, "tessera"))


def _is_loaded_by_name_conversions(checkpoint, model):
    if not isinstance(model, transformers.PreTrainedModel) or getattr(
            model, "quantization_method", None) is not None or getattr(
            model, "_hf_peft_config_loaded", False):
        return False
    if not any(os.path.isfile(os.path.join(checkpoint, name)) for name in (
            SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME,
            WEIGHTS_INDEX_NAME)):
        return False
    # from_pretrained() makes another model, of the configuration alone.
    required = [
        one.name for one in
        inspect.signature(type(model).__init__).parameters.values()
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD,
                         one.KEYWORD_ONLY)]
    return len(required) <= 2  # self, config


def _refuse_missing(checkpoint, names):
    if not names:
        return
    names = sorted(names)
    raise _C.Error(
        f"Trainer: {checkpoint} lacks {len(names)} weights of the model: "
        f"{', '.join(names[:5])}{' ...' * (len(names) > 5)}; they would begin "
        "anew. Continue with the model that saved it; or load what it has with "
        "from_pretrained(), and train that without resume_from_checkpoint.")


def _load(checkpoint, name):
    path = os.path.join(checkpoint, name)
    if not os.path.isfile(path):
        return None
    return torch.load(path, map_location="cpu", weights_only=True)

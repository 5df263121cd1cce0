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
import os

import torch
import transformers
from transformers.trainer import SCHEDULER_NAME

from tessera.integrations.accelerate import Accelerator, save_only


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

    def save_model(self, output_dir=None, _internal_call=False):
        if self.engine is None:
            super().save_model(output_dir, _internal_call)
            return
        state = self.engine.state_dict()
        if self.args.should_save:
            self._save(output_dir or self.args.output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir):
        save_only(self.engine, os.path.join(output_dir, "tessera"))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(),
                       os.path.join(output_dir, SCHEDULER_NAME))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        # The engine loads weights with their state, once there is one.
        if not os.path.isdir(os.path.join(resume_from_checkpoint, "tessera")):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None:
            return
        folder = os.path.join(checkpoint, "tessera")
        if os.path.isdir(folder):
            self.engine.load(folder)
            self.lr_scheduler.load_state_dict(torch.load(
                os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True))

    def _load_best_model(self):
        self.engine.load(
            os.path.join(self.state.best_model_checkpoint, "tessera"))

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/trainer.h"

#include "tessera/runtime/core/option_fields.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, TrainerOptions& options) {
  fields.field("epochs", options.epochs, {.min = 1}, "passes over the data");
  fields.field(
      "max_steps",
      options.max_steps,
      {.min = 0},
      "maximum number of optimizer steps; 0: all epochs");
  fields.field(
      "accumulate",
      options.accumulate,
      {.min = 1},
      "micro-batches per optimizer step");
  fields.field(
      "log_every",
      options.log_every,
      {.min = 1},
      "optimizer steps per log line: means over them, or the last one's, as [the log](../docs/training.md#watching-a-run) says of each value; on CUDA the host synchronizes with the device only then");
  fields.field(
      "step_timing",
      options.step_timing,
      "log lines split the time of a step into data, forward, backward, optimizer and exposed transfers");
  fields.field(
      "count_flops",
      options.count_flops,
      "log lines contain the model's floating-point operations per step and their share of the devices' peak (MFU, or % of measured peak); see [the log](../docs/training.md#watching-a-run)");
  fields.field(
      "profile_steps",
      options.profile_steps,
      {.min = 0, .max = 1000},
      "number of steps of which `profile/` in the run folder gets the time, operations and memory of each layer, and a trace for Perfetto; 0: none. `tessera train --profile` sets 3");
  fields.field(
      "profile_first",
      options.profile_first,
      {.min = 1},
      "the first of these steps");
  fields.field(
      "save_every",
      options.save_every,
      {.min = 0},
      "optimizer steps between checkpoints in the run folder; 0: only time counts");
  fields.field(
      "save_minutes",
      options.save_minutes,
      {.min = 0},
      "minutes between checkpoints; 0: only steps count");
  fields.field(
      "save_last",
      options.save_last,
      "save a checkpoint after the last step, before the model is exported and scored");
  fields.field(
      "keep_last",
      options.keep_last,
      {.min = 0, .max = 1000},
      "number of checkpoints that are kept; 0: all");
  fields.field(
      "evaluate_every",
      options.evaluate_every,
      {.min = 0},
      "optimizer steps between scores of the held-out data while the run trains, which are also scored after the last step; 0: only then");
  fields.field(
      "best_metric",
      options.best_metric,
      "with `evaluate_every`: what makes a score the best one, e.g. `accuracy`; losses and perplexities are better if lower, others if higher");
  fields.field(
      "keep_best",
      options.keep_best,
      "with `evaluate_every`: save a checkpoint after each score that is better than those before, and keep the best one beside the last ones; `checkpoints/best` is a link to it");
  fields.field(
      "export_best",
      options.export_best,
      "as `keep_best`, and export the best checkpoint instead of the last step");
  fields.field(
      "early_stop",
      options.early_stop,
      {.min = 0},
      "with `evaluate_every`: end the run after so many scores without a better one; 0: never");
  fields.field(
      "ema_evaluate",
      options.ema_evaluate,
      "with `optimizer.ema_decay`: score the held-out data, during the run and at its end, and export the model with the averages in the place of the weights");
  fields.field(
      "resume_from",
      options.resume_from,
      "resume from this checkpoint of the run folder, e.g. `step-100`, or from a path; later ones are renamed to `replaced-step-N`");
  fields.field(
      "resume",
      options.resume,
      "resume from the latest checkpoint in the run folder; see [checkpoints](../docs/checkpoints.md#resuming)");
  fields.choice(
      "on_bad_loss",
      options.on_bad_loss,
      {{"stop", OnBadLoss::kStop}, {"roll_back", OnBadLoss::kRollBack}},
      "after a loss that is not finite, a spike, or with `on_nonfinite=stop` a gradient that is not finite: `stop` with an error, or return to the newest checkpoint and leave out the samples since the last good loss, 20 times at most");
  fields.field(
      "loss_spike",
      options.loss_spike,
      {.min = 0},
      "a loss above this times the median of the last 64 lines of the log is bad, too, e.g. 3; 0: only one that is not finite");
  fields.field(
      "clip_grad_norm",
      options.clip_grad_norm,
      {.min = 0},
      "maximum global 2-norm of the gradients; 0: no clipping, as by default with `update_in_backward` and with optimizers that exchange momentum, which cannot clip");
}

} // namespace tessera

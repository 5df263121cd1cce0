// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainingHook` is code of a program that train() calls at fixed points of a
// run.

#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <filesystem>

namespace tessera {

struct TrainingSummary; // engine/trainer/trainer.h

/// Where a run is.
struct TrainingPoint {
  World& world;
  Engine& engine;
  int64_t step = 0; ///< in progress, or the last one; counted from 1
  int64_t total_steps = 0; ///< of the whole run
};

/// All ranks need the same hooks. Functions are called on every rank, at the
/// same point, so that they may be collective, unless they say otherwise; what
/// they throw ends the run. They must leave gradients and weights to the
/// trainer where they do not say that they may change them.
///
/// ```
/// struct Printer : tessera::TrainingHook {
///   void after_step(const tessera::TrainingPoint& at, bool) override {
///     std::cout << at.step << '\n';
///   }
/// };
/// Printer printer;
/// options.hooks = {&printer};   // TrainerOptions
/// config.trainer.hooks = {&printer};   // of zoo::run_training()
/// ```
class TrainingHook {
 public:
  virtual ~TrainingHook() = default;

  /// Before the first forward of a step, when its learning rate is set: it may
  /// be changed, for this step.
  virtual void before_step(const TrainingPoint& /*at*/) {}
  /// After the last backward of a step, before clipping. Gradients may be read
  /// and changed (Engine::grad(), clip_grad_value(), reduce(), ...), except
  /// with EngineOptions::update_in_backward, which has applied them.
  virtual void after_backward(const TrainingPoint& /*at*/) {}
  /// After the optimizer step. Weights may be changed (Engine::gather()).
  /// @param is_skipped gradients were not finite, and nothing was updated.
  virtual void after_step(const TrainingPoint& /*at*/, bool /*is_skipped*/) {}
  /// After the held-out data were scored (TrainerOptions::evaluate_every).
  virtual void after_evaluation(
      const TrainingPoint& /*at*/,
      const TaskScore& /*score*/) {}
  /// After a checkpoint of the run was written. With
  /// EngineOptions::save_in_background, ranks are told after different steps:
  /// not for collective work then. `at.step` is the checkpoint's.
  virtual void on_checkpoint(
      const TrainingPoint& /*at*/,
      const std::filesystem::path& /*checkpoint*/) {}
  /// After the last step and its checkpoint.
  virtual void at_end(
      const TrainingPoint& /*at*/,
      const TrainingSummary& /*summary*/) {}
};

} // namespace tessera

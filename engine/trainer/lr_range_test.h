// SPDX-License-Identifier: Apache-2.0
#pragma once
// `lr_range_test()` looks for a learning rate: it raises the rate from step to
// step until the loss diverges (arXiv:1506.01186).

#include "tessera/engine/trainer/trainer.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

enum class LrRangeGrowth { kExponential, kLinear };

/// The section `training.lr_range_test`.
struct LrRangeOptions {
  double min_lr = 1e-7;
  double max_lr = 1;
  int64_t steps = 100;
  LrRangeGrowth growth = LrRangeGrowth::kExponential;
  /// The loss has diverged if it is not finite, or above this times the median
  /// of the losses before.
  double diverges_at = 4;
};

void visit_fields(runtime::OptionFields& fields, LrRangeOptions& options);

/// @throws tessera::Error unless min_lr < max_lr.
void check(const LrRangeOptions& options);

/// The rate of step `step`, counted from 0.
double lr_range_at(const LrRangeOptions& options, int64_t step);

struct LrRangePoint {
  double lr = 0;
  double loss = 0;
  double smoothed_loss = 0; ///< mean with weights that fall by 0.9 per step
};

struct LrRangeResult {
  std::vector<LrRangePoint> points; ///< of the steps before it diverged
  bool has_diverged = false;
  /// Where the smoothed loss falls most steeply, over the logarithm of the
  /// rate and a tenth of the points; nothing if it never falls.
  std::optional<double> steepest_lr = {};
  /// A tenth of the rate at which the smoothed loss is the least.
  std::optional<double> tenth_of_best_lr = {};
};

/// What follows from the curve, up to its least loss.
LrRangeResult lr_range_result(
    std::vector<LrRangePoint> points,
    bool has_diverged);

/// Trains with rising rates, without checkpoints, scores and a schedule. Writes
/// the log, lr_range_test.json and lr_range_test.svg to `lr_range_test` in
/// TrainerOptions::run_folder, whose other files stay as they are; an earlier
/// test is replaced. Changes the weights of the engine. Collective; blocks.
/// @return the same on rank 0 as in the file; on other ranks without points.
LrRangeResult lr_range_test(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& trainer,
    const LrRangeOptions& options);

} // namespace tessera

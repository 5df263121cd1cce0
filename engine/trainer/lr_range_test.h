// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_lr_range_test()` finds the learning rates at which a model can be
// trained.

#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tessera {

struct LrRangeTestOptions {
  double min_lr = 1e-7;
  double max_lr = 1;
  int64_t steps = 100;
  /// The test ends when the smoothed loss exceeds this many times its minimum.
  double divergence_factor = 4;
  /// Decay factor of the running mean of the loss.
  double smoothing = 0.9;
  /// The file to which rank 0 draws the curve; empty for none.
  std::filesystem::path plot;
};

struct LrRangeTestResult {
  struct Point {
    double lr;
    double loss; ///< smoothed, mean over all ranks
  };
  std::vector<Point> points;
  /// The rate at which the smoothed loss fell fastest over the logarithm of the
  /// rate: a good peak for a schedule. 0 if the loss never fell.
  double suggested_lr = 0;
};

/// Trains with a rate that grows exponentially from min_lr to max_lr and
/// records the loss (arXiv:1506.01186). Changes the model and the optimizer
/// state: save the engine before, or discard it afterwards. Collective.
LrRangeTestResult run_lr_range_test(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const LrRangeTestOptions& options);

} // namespace tessera

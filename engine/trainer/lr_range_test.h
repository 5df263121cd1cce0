// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds out which learning rates a model can be trained with.

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
  /// Ends when the smoothed loss exceeds the lowest one so many times.
  double divergence_factor = 4;
  /// Of the running mean of the loss.
  double smoothing = 0.9;
  /// Where rank 0 draws the curve; empty for none.
  std::filesystem::path plot;
};

struct LrRangeTestResult {
  struct Point {
    double lr;
    double loss; ///< smoothed, mean over all ranks
  };
  std::vector<Point> points;
  /// Where the smoothed loss fell fastest over the logarithm of the rate: a
  /// good peak for a schedule. 0 when it never fell.
  double suggested_lr = 0;
};

/// Trains with a rate that grows exponentially from min_lr to max_lr and
/// watches the loss (arXiv:1506.01186). Changes the model and the optimizer's
/// state: save the engine before, or throw it away. Collective.
LrRangeTestResult run_lr_range_test(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const LrRangeTestOptions& options);

} // namespace tessera

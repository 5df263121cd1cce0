// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/lr_range_test.h"

#include "tessera/engine/report/line_plot.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

void check(const LrRangeTestOptions& options) {
  TESSERA_CHECK(
      options.min_lr > 0 && options.max_lr > options.min_lr,
      "learning-rate range test: the rates go from {} to {}; the first must be above 0 and below the second.",
      options.min_lr,
      options.max_lr);
  TESSERA_CHECK(
      options.steps >= 2,
      "learning-rate range test: {} steps draw no curve; give at least 2.",
      options.steps);
}

double steepest_descent(const std::vector<LrRangeTestResult::Point>& points) {
  double steepest = 0;
  double lr = 0;
  // Rates are equally spaced in their logarithm. Losses of consecutive batches
  // differ by more than the loss falls in a step, so slopes are taken over a
  // fifth of the curve.
  const size_t reach = std::max<size_t>(1, points.size() / 10);
  for (size_t i = reach; i + reach < points.size(); ++i) {
    const double slope = points[i + reach].loss - points[i - reach].loss;
    if (slope < steepest) {
      steepest = slope;
      lr = points[i].lr;
    }
  }
  return lr;
}

void draw(const LrRangeTestResult& result, const std::filesystem::path& path) {
  LinePlot plot;
  plot.title = "Learning-rate range test";
  plot.x_label = "log10 of the learning rate";
  plot.y_label = "loss, smoothed";
  PlotSeries curve{"loss", {}};
  for (const auto& point : result.points) {
    curve.points.push_back({std::log10(point.lr), point.loss});
  }
  plot.series.push_back(std::move(curve));
  write_file_atomically(path, to_svg(plot));
}

} // namespace

LrRangeTestResult run_lr_range_test(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const LrRangeTestOptions& options) {
  check(options);
  const double lr_before = engine.learning_rate();
  const int64_t batches = task.batches_per_epoch();
  TESSERA_CHECK(
      batches > 0, "learning-rate range test: the task has no batches.");
  LrRangeTestResult result;
  double mean = 0;
  double lowest = std::numeric_limits<double>::infinity();
  for (int64_t step = 0; step < options.steps; ++step) {
    if (step % batches == 0) {
      task.begin_epoch(step / batches);
    }
    task.load(step % batches);
    const double part =
        static_cast<double>(step) / static_cast<double>(options.steps - 1);
    const double lr =
        options.min_lr * std::pow(options.max_lr / options.min_lr, part);
    engine.set_learning_rate(lr);
    const MicroBatch batch = task.forward(step % batches);
    engine.backward(batch.loss);
    const at::Tensor sum =
        at::tensor({batch.loss.item<double>() / world.size()}, at::kDouble);
    engine.sum_over_ranks(sum);
    mean =
        options.smoothing * mean + (1 - options.smoothing) * sum.item<double>();
    // The mean starts at zero: without this correction it would be too low at
    // first.
    const double loss =
        mean / (1 - std::pow(options.smoothing, static_cast<double>(step + 1)));
    lowest = std::min(lowest, loss);
    if (!std::isfinite(loss) || loss > options.divergence_factor * lowest) {
      engine.zero_grad();
      break;
    }
    result.points.push_back({lr, loss});
    engine.step();
  }
  engine.set_learning_rate(lr_before);
  result.suggested_lr = steepest_descent(result.points);
  if (world.rank() == 0 && !options.plot.empty()) {
    draw(result, options.plot);
  }
  return result;
}

} // namespace tessera

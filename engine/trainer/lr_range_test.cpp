// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/lr_range_test.h"

#include "tessera/engine/report/line_plot.h"
#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/training_hook.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {

namespace {

constexpr double kSmoothing = 0.9;

/// Sets the rate of each step, whatever the schedule says.
class RisingRate : public TrainingHook {
 public:
  explicit RisingRate(const LrRangeOptions& options) : options_(options) {}

  void before_step(const TrainingPoint& at) override {
    at.engine.set_learning_rate(lr_range_at(options_, at.step - 1));
  }

 private:
  const LrRangeOptions& options_;
};

nlohmann::ordered_json value_of(const std::optional<double>& lr) {
  return lr ? nlohmann::ordered_json(*lr) : nlohmann::ordered_json();
}

void write_result(
    const std::filesystem::path& folder,
    const LrRangeResult& result) {
  nlohmann::ordered_json values{
      {"steepest_lr", value_of(result.steepest_lr)},
      {"tenth_of_best_lr", value_of(result.tenth_of_best_lr)},
      {"has_diverged", result.has_diverged},
      {"points", nlohmann::ordered_json::array()}};
  engine::LinePlot plot{
      .title = "Learning rate range test",
      .x_label = "log10 of the learning rate",
      .y_label = "loss",
      .series = {{"loss", {}}, {"smoothed", {}}}};
  for (const LrRangePoint& point : result.points) {
    values["points"].push_back(
        {{"lr", point.lr},
         {"loss", point.loss},
         {"smoothed_loss", point.smoothed_loss}});
    const double x = std::log10(point.lr);
    plot.series[0].points.push_back({x, point.loss});
    plot.series[1].points.push_back({x, point.smoothed_loss});
  }
  runtime::write_file_atomically(
      folder / "lr_range_test.json", values.dump(2) + "\n");
  runtime::write_file_atomically(
      folder / "lr_range_test.svg", engine::to_svg(plot));
}

} // namespace

void visit_fields(runtime::OptionFields& fields, LrRangeOptions& options) {
  constexpr runtime::DoubleRange kAbove0{.min = 0, .open_min = true};
  fields.field("min_lr", options.min_lr, kAbove0, "rate of the first step");
  fields.field("max_lr", options.max_lr, kAbove0, "rate of the last step");
  fields.field("steps", options.steps, {.min = 2}, "optimizer steps, at most");
  fields.choice(
      "growth",
      options.growth,
      {{"exponential", LrRangeGrowth::kExponential},
       {"linear", LrRangeGrowth::kLinear}},
      "how the rate grows from step to step");
  fields.field(
      "diverges_at",
      options.diverges_at,
      {.min = 1},
      "ends the test: a loss above this times the median of those before, at least 8");
}

void check(const LrRangeOptions& options) {
  TESSERA_CHECK(
      options.min_lr < options.max_lr,
      "training.lr_range_test: min_lr is {} and max_lr {}; the rate has to rise",
      options.min_lr,
      options.max_lr);
}

double lr_range_at(const LrRangeOptions& options, int64_t step) {
  const double share =
      static_cast<double>(step) / static_cast<double>(options.steps - 1);
  return options.growth == LrRangeGrowth::kLinear
             ? options.min_lr + share * (options.max_lr - options.min_lr)
             : options.min_lr *
                   std::pow(options.max_lr / options.min_lr, share);
}

LrRangeResult lr_range_result(
    std::vector<LrRangePoint> points,
    bool has_diverged) {
  LrRangeResult result{
      .points = std::move(points),
      .has_diverged = has_diverged,
      .steepest_lr = {},
      .tenth_of_best_lr = {}};
  double sum = 0;
  double weight = 0;
  for (LrRangePoint& point : result.points) {
    sum = kSmoothing * sum + (1 - kSmoothing) * point.loss;
    weight = kSmoothing * weight + (1 - kSmoothing);
    point.smoothed_loss = sum / weight;
  }
  const auto best = std::min_element(
      result.points.begin(),
      result.points.end(),
      [](const LrRangePoint& a, const LrRangePoint& b) {
        return a.smoothed_loss < b.smoothed_loss;
      });
  if (best == result.points.begin()) {
    return result; // it never falls
  }
  result.tenth_of_best_lr = best->lr / 10;
  // Over a tenth of the points: single losses are noise. The first ones are
  // means of few.
  const auto count = static_cast<std::ptrdiff_t>(result.points.size());
  const std::ptrdiff_t half = std::max<std::ptrdiff_t>(1, count / 20);
  double steepest = 0;
  for (auto point = result.points.begin() + std::max(half, count / 10);
       point <= best && point + half < result.points.end();
       ++point) {
    const LrRangePoint& before = *(point - half);
    const LrRangePoint& after = *(point + half);
    const double slope = (after.smoothed_loss - before.smoothed_loss) /
                         std::log(after.lr / before.lr);
    if (slope < steepest) {
      steepest = slope;
      result.steepest_lr = point->lr;
    }
  }
  return result;
}

LrRangeResult lr_range_test(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& trainer,
    const LrRangeOptions& options) {
  check(options);
  TrainerOptions local = trainer;
  local.run_folder = trainer.run_folder / "lr_range_test";
  local.max_steps = options.steps;
  local.on_bad_loss = OnBadLoss::kEnd;
  local.loss_spike = options.diverges_at;
  local.log_every = 1;
  local.save_every = 0;
  local.save_minutes = 0;
  local.save_last = false;
  local.evaluate_every = 0;
  local.keep_best = false;
  local.export_best = false;
  local.early_stop = 0;
  local.resume = false;
  local.resume_from.clear();
  local.restart_data = false;
  local.schedule = LrScheduleOptions();
  local.schedule.decay = LrDecay::kConstant;
  RisingRate rising(options);
  local.hooks.push_back(&rising);
  TESSERA_CHECK(
      total_steps_of(local, task) == options.steps,
      "training.lr_range_test.steps is {}, but the data give {} steps in training.epochs={}; lower it, or raise the epochs",
      options.steps,
      total_steps_of(local, task),
      local.epochs);
  engine::JobAgreement(world, "learning rate range test")
      .from_rank_zero("preparing its folder", [&] {
        runtime::remove_tree(local.run_folder);
        std::filesystem::create_directories(local.run_folder);
        return 0;
      });
  const double lr = engine.learning_rate();
  const TrainingSummary summary = train(world, engine, task, local);
  engine.set_learning_rate(lr);
  const bool has_diverged =
      summary.stop_signal == 0 && summary.steps < options.steps;
  if (world.rank() != 0) {
    return {.points = {}, .has_diverged = has_diverged};
  }
  std::vector<LrRangePoint> points;
  for (const engine::StepMetrics& line :
       engine::read_metrics(local.run_folder)) {
    points.push_back({.lr = line.lr, .loss = line.loss});
  }
  LrRangeResult result = lr_range_result(std::move(points), has_diverged);
  write_result(local.run_folder, result);
  return result;
}

} // namespace tessera

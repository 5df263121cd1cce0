// SPDX-License-Identifier: Apache-2.0
// Held-out data are scored while a run trains: the numbers are in the log, the
// best checkpoint stays, and a run that gets no better ends.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/trainer.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace tessera::engine::heldout_scores_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Scores that are given, one after the other.
class ScoredTask : public TrainingTask {
 public:
  ScoredTask(Restless net, std::vector<double> losses, int64_t dies_at = -1)
      : net_(std::move(net)), losses_(std::move(losses)), dies_at_(dies_at) {}

  int64_t batches_per_epoch() const override {
    return 12;
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t /*epoch*/) override {}
  void after_step(int64_t step, int64_t /*steps*/) override {
    step_ = step;
  }
  MicroBatch forward(int64_t /*index*/) override {
    TESSERA_CHECK(done_++ != dies_at_, "the machine is gone");
    return {net_->forward(torch::randn({5, 7})).square().mean(), 35};
  }
  std::optional<TaskScore> score(
      const std::function<bool()>& /*stops*/) override {
    if (losses_.empty()) {
      return std::nullopt;
    }
    const double loss = losses_.at(static_cast<size_t>(step_ / 2 - 1));
    TaskScore score{"loss as given", {{"heldout_loss", loss}}};
    score.values["heldout_accuracy"] = 1 - loss;
    score.values["heldout_examples"] = 7;
    return score;
  }

 private:
  Restless net_;
  std::vector<double> losses_;
  int64_t dies_at_;
  int64_t done_ = 0;
  int64_t step_ = 0;
};

/// Scores in many batches; the process on rank 1 is asked to end in the third.
class LongScores : public ScoredTask {
 public:
  using ScoredTask::ScoredTask;

  std::optional<TaskScore> score(const std::function<bool()>& stops) override {
    for (int i = 0; i < 100; ++i) {
      ++scored_batches;
      is_asked_to_end = world().rank() == 1 && scored_batches >= 3;
      if (stops()) {
        return std::nullopt;
      }
    }
    return ScoredTask::score(stops);
  }

  int scored_batches = 0;
  bool is_asked_to_end = false;
};

TrainerOptions options_of(const fs::path& folder) {
  fs::create_directories(folder);
  TrainerOptions options;
  options.save_minutes = 0;
  options.evaluate_every = 2;
  options.run_folder = folder;
  return options;
}

struct Trained {
  TrainingSummary summary;
  std::map<std::string, at::Tensor> values;
};

Trained trained(
    World& world,
    const TrainerOptions& options,
    const std::vector<double>& losses,
    bool in_background = false) {
  auto net = make_restless(1, torch::kFloat);
  auto engine_options = group_per_layer();
  engine_options.save_in_background = in_background;
  auto engine = wrap(net, engine_options);
  torch::manual_seed(4 + world.rank());
  ScoredTask task(net, losses);
  Trained result;
  result.summary = train(world, engine, task, options);
  result.values = values_of(engine, *net);
  return result;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& one : list_checkpoints(folder)) {
    names.push_back(one.filename());
  }
  return names;
}

} // namespace

TEST(HeldoutScores, AreInTheLinesOfTheirSteps) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto options = options_of(folder / "run");
    const auto summary =
        trained(world, options, {0.5, 0.4, 0.6, kNan, 0.3, 0.3}).summary;
    EXPECT_EQ(summary.steps, 12);
    EXPECT_FALSE(summary.stopped_early);
    EXPECT_EQ(summary.best_step, 10);
    EXPECT_EQ(summary.best_text, "heldout_loss 0.3 of step 10");
    if (world.rank() != 0) {
      return;
    }
    const auto lines = read_metrics(folder / "run");
    ASSERT_EQ(lines.size(), 12U);
    EXPECT_TRUE(lines[0].heldout.empty());
    ASSERT_EQ(lines[1].heldout.size(), 2U); // the number of examples is not
    EXPECT_EQ(lines[1].heldout[0].first, "heldout_loss");
    EXPECT_EQ(lines[1].heldout[0].second, 0.5);
    EXPECT_EQ(lines[3].heldout[1].second, 1 - 0.4);
    const LinePlot plot = loss_plot(lines);
    ASSERT_EQ(plot.series.size(), 2U);
    EXPECT_EQ(plot.series[1].points.size(), 5U); // NaN is none
    const auto plots = run_report("run", lines, {}, "").plots;
    EXPECT_EQ(plots[1].title, "Held-out accuracy");
    const auto speed =
        std::find_if(plots.begin(), plots.end(), [](const LinePlot& one) {
          return one.y_label == "tokens/s";
        });
    ASSERT_NE(speed, plots.end());
    EXPECT_EQ(speed->series[0].points.size(), 12U);
  });
}

// The grace period of a scheduler may be shorter than an evaluation.
TEST(HeldoutScores, ASignalEndsAnEvaluation) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto options = options_of(folder / "run");
    options.keep_best = true;
    const auto run = [&](const std::vector<double>& losses) {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      torch::manual_seed(4 + world.rank());
      LongScores task(net, losses);
      options.stop_signal = [&] { return task.is_asked_to_end ? 15 : 0; };
      const auto summary = train(world, engine, task, options);
      EXPECT_EQ(task.scored_batches, 3);
      return summary;
    };
    const auto summary = run({0.5});
    EXPECT_EQ(summary.stop_signal, 15);
    EXPECT_EQ(summary.steps, 2);
    EXPECT_FALSE(summary.last_score.has_value());
    EXPECT_EQ(summary.best_step, 0);
    EXPECT_TRUE(fs::exists(summary.checkpoint));
    EXPECT_EQ(
        names_in(options.run_folder / "checkpoints"),
        std::vector<std::string>{"step-000002"});
    // It goes on from there.
    options.resume = true;
    EXPECT_EQ(run({0.5, 0.4}).steps, 4);
  });
}

// One that comes before leaves no time for it.
TEST(HeldoutScores, ASignalPreventsAnEvaluation) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto options = options_of(folder / "run");
    options.stop_signal = [&] { return world.rank() == 1 ? 15 : 0; };
    options.evaluate_every = 1;
    const auto summary = trained(world, options, {}).summary; // has no data
    EXPECT_EQ(summary.stop_signal, 15);
    EXPECT_EQ(summary.steps, 1);
    EXPECT_TRUE(fs::exists(summary.checkpoint));
  });
}

// Of scores after steps 5, 10 and 12.
TEST(HeldoutScores, TheLastStepMayBeTheBest) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto options = options_of(folder / "run");
    options.evaluate_every = 5;
    options.export_best = true;
    const auto summary =
        trained(world, options, {0, 0.5, 0, 0, 0.4, 0.123456789}).summary;
    EXPECT_EQ(summary.best_step, 12);
    EXPECT_EQ(summary.best_text, "heldout_loss 0.12346 of step 12");
    ASSERT_TRUE(summary.last_score.has_value());
    EXPECT_EQ(summary.last_score->values.at("heldout_loss"), 0.123456789);
    if (world.rank() == 0) {
      const auto lines = read_metrics(folder / "run");
      ASSERT_EQ(lines.size(), 12U);
      EXPECT_FALSE(lines[11].heldout.empty());
    }
    // Not the score of weights that others have replaced.
    options.run_folder = folder / "earlier";
    std::filesystem::create_directories(options.run_folder);
    const auto earlier =
        trained(world, options, {0, 0.5, 0, 0, 0.1, 0.2}).summary;
    EXPECT_EQ(earlier.best_step, 10);
    EXPECT_TRUE(earlier.has_best_weights);
    EXPECT_FALSE(earlier.last_score.has_value());
  });
}

TEST(HeldoutScores, EndARunThatGetsNoBetter) {
  for (const std::string metric : {"loss", "heldout_accuracy"}) {
    const TemporaryFolder folder;
    run_ranks(2, [&](World& world) {
      auto options = options_of(folder / "run");
      options.early_stop = 2;
      options.best_metric = metric;
      const auto summary =
          trained(world, options, {0.5, 0.6, 0.4, 0.4, 0.5, 0.1}).summary;
      EXPECT_TRUE(summary.stopped_early);
      EXPECT_EQ(summary.steps, 10);
      EXPECT_EQ(summary.total_steps, 12);
      EXPECT_EQ(summary.best_step, 6);
      EXPECT_EQ(summary.checkpoint.filename(), "step-000010");
    });
  }
}

// Of the last checkpoints one is kept, and the best one.
TEST(HeldoutScores, KeepTheBestCheckpoint) {
  for (const bool in_background : {false, true}) {
    const TemporaryFolder folder;
    run_ranks(2, [&](World& world) {
      auto options = options_of(folder / "run");
      options.keep_best = true;
      options.keep_last = 1;
      options.save_every = 3;
      trained(world, options, {0.5, 0.4, 0.6, 0.7, 0.8, 0.9}, in_background);
      const fs::path saved = folder / "run" / "checkpoints";
      EXPECT_EQ(
          names_in(saved),
          (std::vector<std::string>{"step-000004", "step-000012"}));
      ASSERT_TRUE(best_checkpoint(saved).has_value());
      EXPECT_EQ(best_checkpoint(saved)->filename(), "step-000004");
      EXPECT_EQ(find_checkpoint(saved / "best").filename(), "step-000004");
    });
  }
}

TEST(HeldoutScores, LeaveTheWeightsOfTheBestIfWanted) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const std::vector<double> losses{0.5, 0.4, 0.6, 0.7, 0.8, 0.9};
    auto until_best = options_of(folder / "until");
    until_best.max_steps = 4;
    const auto expected = trained(world, until_best, losses);
    EXPECT_TRUE(expected.summary.has_best_weights);

    auto options = options_of(folder / "best");
    options.export_best = true;
    const auto best = trained(world, options, losses);
    EXPECT_TRUE(best.summary.has_best_weights);
    // The schedule of a run of four steps is another one.
    const auto last = trained(world, options_of(folder / "last"), losses);
    EXPECT_FALSE(last.summary.has_best_weights);
    EXPECT_FALSE(torch::equal(
        best.values.at("first.weight"), last.values.at("first.weight")));
    auto again = make_restless(3, torch::kFloat);
    auto engine = wrap(again, group_per_layer());
    engine.load(folder / "best" / "checkpoints" / "step-000004");
    expect_equal(best.values, values_of(engine, *again), "the best");
  });
}

// The best value and the number of scores since are parts of checkpoints.
TEST(HeldoutScores, CountOnAfterAResume) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const std::vector<double> losses{0.4, 0.5, 0.5, 0.5, 0.5, 0.5};
    auto options = options_of(folder / "run");
    options.early_stop = 3;
    options.save_every = 4;
    {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      ScoredTask task(net, losses, /*dies_at=*/5);
      EXPECT_THROW(train(world, engine, task, options), Error);
    }
    options.resume = true;
    const auto summary = trained(world, options, losses).summary;
    EXPECT_EQ(summary.steps, 8);
    EXPECT_EQ(summary.best_step, 2);
  });
}

// Values of other data or another metric say nothing about those of this run.
TEST(HeldoutScores, CountAnewForOtherDataOrMetrics) {
  for (const std::string change : {"", "name", "data", "metric"}) {
    const TemporaryFolder folder;
    run_ranks(2, [&](World& world) {
      auto options = options_of(folder / "run");
      options.max_steps = 4;
      options.scored_data = {"a.bin", "1"};
      trained(world, options, {0.3, 0.4});
      options.max_steps = 8;
      options.resume = true;
      if (change == "name") {
        options.scored_data.name = "b.bin";
      } else if (change == "data") {
        options.scored_data = {"b.bin", "2"};
      } else if (change == "metric") {
        options.best_metric = "accuracy";
      }
      testing::internal::CaptureStderr();
      const auto summary = trained(world, options, {0, 0, 0.6, 0.7}).summary;
      const std::string log = testing::internal::GetCapturedStderr();
      const bool is_anew = change == "data" || change == "metric";
      EXPECT_EQ(summary.best_step, is_anew ? 6 : 2) << change;
      const char* said =
          change == "data"
              ? "heldout_loss 0.3 of step 2, the best score so far, is of other data ('a.bin'), and is not compared with those of this run, of 'b.bin'"
              : "is of another metric, and is not compared with those of this run, of heldout_accuracy";
      EXPECT_EQ(
          log.find(said) != std::string::npos, is_anew && world.rank() == 0)
          << log;
      // The next checkpoint knows what it is of.
      const auto record = best_record(summary.checkpoint);
      ASSERT_TRUE(record.has_value());
      EXPECT_EQ(record->metric, change == "metric" ? "accuracy" : "loss");
      EXPECT_EQ(record->data.name, options.scored_data.name);
      EXPECT_EQ(record->data.identity, options.scored_data.identity);
      EXPECT_EQ(record->scored_step, 8);
      EXPECT_EQ(record->step, summary.best_step);
    });
  }
}

// A run that goes back writes steps anew: "best" must not name one of them that
// nothing has scored.
TEST(HeldoutScores, TheBestCheckpointOfStepsThatAreDoneAnewIsAnother) {
  for (const bool has_earlier : {true, false}) {
    const TemporaryFolder folder;
    run_ranks(2, [&](World& world) {
      auto options = options_of(folder / "run");
      options.keep_best = true;
      options.save_every = 2;
      options.keep_last = 0;
      options.max_steps = 8;
      const std::vector<double> losses{
          has_earlier ? 0.5 : kNan, has_earlier ? 0.4 : kNan, kNan, 0.3};
      trained(world, options, losses);
      const fs::path saved = folder / "run" / "checkpoints";
      ASSERT_EQ(best_checkpoint(saved)->filename(), "step-000008");
      options.keep_best = false;
      options.evaluate_every = 0;
      options.resume = true;
      options.resume_from = "step-6";
      const auto summary = trained(world, options, {}).summary;
      EXPECT_EQ(summary.checkpoint.filename(), "step-000008");
      const auto best = best_checkpoint(saved);
      EXPECT_EQ(best.has_value(), has_earlier);
      if (has_earlier) {
        EXPECT_EQ(best->filename(), "step-000004");
      } else {
        expect_error(
            [&] { find_checkpoint(saved / "best"); },
            {"there is no", "training.keep_best", "step-000008"});
      }
      const auto record = best_record(summary.checkpoint);
      EXPECT_EQ(record->step, has_earlier ? 4 : 0);
      EXPECT_EQ(record->scored_step, 6);
    });
  }
}

// Only its own: those of another run stay what they are.
TEST(HeldoutScores, ARunSetsItsOwnLaterCheckpointsAside) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto options = options_of(folder / "first");
    options.save_every = 2;
    options.keep_last = 0;
    options.max_steps = 6;
    trained(world, options, {0.5, 0.4, 0.3});
    const fs::path first = folder / "first" / "checkpoints";
    options = options_of(folder / "second");
    options.max_steps = 4;
    options.resume = true;
    options.resume_from = (first / "step-000002").string();
    trained(world, options, {0.5, 0.4});
    EXPECT_EQ(
        names_in(first),
        (std::vector<std::string>{
            "step-000002", "step-000004", "step-000006"}));
  });
}

TEST(HeldoutScores, NameWhatIsMissing) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    auto options = options_of(folder / "metric");
    options.best_metric = "f1";
    expect_error(
        [&] { trained(world, options, {0.5}); },
        {"training.best_metric is 'f1'", "loss, accuracy, examples"});
    expect_error(
        [&] { trained(world, options_of(folder / "none"), {}); },
        {"training.evaluate_every is 2", "data.heldout"});
    for (const auto& [name, set] : std::vector<
             std::pair<const char*, std::function<void(TrainerOptions&)>>>{
             {"keep_best", [](auto& one) { one.keep_best = true; }},
             {"export_best", [](auto& one) { one.export_best = true; }},
             {"early_stop", [](auto& one) { one.early_stop = 2; }}}) {
      auto never = options_of(folder / "never");
      never.evaluate_every = 0;
      set(never);
      const std::string part = std::string("training.") + name + " is set";
      expect_error(
          [&] { trained(world, never, {0.5}); },
          {part.c_str(), "evaluate_every"});
    }
  });
}

} // namespace tessera::engine::heldout_scores_test

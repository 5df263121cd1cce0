// SPDX-License-Identifier: Apache-2.0
// What a training run leaves behind.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>

namespace tessera::engine::trainer_log_test {

namespace {

using namespace tests;

constexpr int64_t kWidth = 16;

/// Loads and forwards in turn, as the trainer promises.
class LinearTask : public TrainingTask {
 public:
  explicit LinearTask(torch::nn::Sequential net) : net_(std::move(net)) {}

  int64_t batch_size() const override {
    return 4;
  }
  int64_t batches_per_epoch() const override {
    return 10;
  }
  void begin_epoch(int64_t) override {}
  void load(int64_t index) override {
    EXPECT_FALSE(loaded_);
    loaded_ = true;
    torch::manual_seed(index);
    x_ = torch::randn({4, kWidth});
  }
  int64_t loaded_padding() const override {
    return 1; // of 4
  }
  MicroBatch forward(int64_t index) override {
    EXPECT_TRUE(loaded_);
    loaded_ = false;
    const auto loss = net_->forward(x_).square().mean();
    if (index == nan_at) {
      return {loss * std::numeric_limits<double>::quiet_NaN(), 4};
    }
    return {loss, 4};
  }

  int64_t nan_at = -1;

 private:
  torch::nn::Sequential net_;
  at::Tensor x_;
  bool loaded_ = false;
};

/// Trains a net of two layers.
TrainingSummary run(
    World& world,
    const TrainerOptions& options,
    int64_t nan_at = -1) {
  torch::manual_seed(1);
  auto net = torch::nn::Sequential(
      torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, 1));
  EngineOptions engine_options;
  engine_options.log_memory = false;
  engine_options.sharding.groups.min_group_numel = 8;
  auto engine = wrap(net, engine_options);
  LinearTask task(net);
  task.nan_at = nan_at;
  return train(world, engine, task, options);
}

TrainerOptions options_of(
    const std::filesystem::path& folder,
    int64_t log_every) {
  std::filesystem::create_directories(folder);
  TrainerOptions options;
  options.max_steps = 5;
  options.accumulate = 2;
  options.log_every = log_every;
  options.run_folder = folder;
  return options;
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& folder) {
  std::vector<nlohmann::json> lines;
  std::istringstream all(runtime::read_text_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(all, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

constexpr std::array<const char*, 5> kParts{
    "data_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "exposed_transfer_s"};

/// Of standard error, about a warm-up that is too long.
int warnings_of_warmup(
    World& world,
    const TrainerOptions& options,
    const char* expected) {
  ::testing::internal::CaptureStderr();
  run(world, options);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(expected), std::string::npos) << log;
  int count = 0;
  for (size_t at = log.find("warm-up"); at != std::string::npos;
       at = log.find("warm-up", at + 1)) {
    ++count;
  }
  return count;
}

} // namespace

TEST(TrainerLog, WarnsOnceOfAWarmUpThatIsTooLong) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    auto options = options_of(folder.path() / "run", 1);
    options.schedule.warmup_steps = 6;
    EXPECT_EQ(
        warnings_of_warmup(world, options, "has 6 steps (schedule.warmup_st"),
        1);
    options.resume = true;
    EXPECT_EQ(warnings_of_warmup(world, options, "and the run 5"), 1);
    // The last step reaches the peak.
    auto longer = options_of(folder.path() / "longer", 1);
    longer.schedule.warmup_steps = 5;
    EXPECT_EQ(warnings_of_warmup(world, longer, ""), 0);
  });
}

TEST(TrainerLog, ALineIsTheMeanOfItsStepsAndSplitsTheirTime) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto each = folder.path() / "each";
    const auto some = folder.path() / "some";
    run(world, options_of(each, 1));
    run(world, options_of(some, 2));
    if (world.rank() != 0) {
      return;
    }
    const auto lines = lines_of(each);
    const auto means = lines_of(some);
    ASSERT_EQ(lines.size(), 5U);
    ASSERT_EQ(means.size(), 3U); // steps 2, 4 and the last
    EXPECT_EQ(means[0]["step"], 2);
    EXPECT_EQ(means[2]["step"], 5);
    // Sums of a few float64 numbers in another order.
    EXPECT_NEAR(
        means[1]["loss"].get<double>(),
        (lines[2]["loss"].get<double>() + lines[3]["loss"].get<double>()) / 2,
        1e-12);
    EXPECT_EQ(means[1]["tokens"], 2 * 2 * 2 * 4); // ranks, steps, parts, rows
    EXPECT_EQ(means[1]["non_padding_tokens"], 2 * 2 * 2 * 3);
    EXPECT_EQ(means[1]["padding_ratio"], 0.25);
    EXPECT_EQ(means[1]["lr"], lines[3]["lr"]);
    for (const auto& line : lines) {
      double parts = 0;
      for (const char* part : kParts) {
        EXPECT_GE(line[part].get<double>(), 0) << part;
        parts += line[part].get<double>();
      }
      EXPECT_GT(line["forward_s"], 0);
      EXPECT_GT(line["exposed_transfer_s"], 0); // two ranks: there are gathers
      EXPECT_LE(parts, line["step_s"].get<double>());
    }
  });
}

TEST(TrainerLog, LeavesAReportAndCurvesForTensorBoard) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    auto options = options_of(folder.path() / "run", 1);
    run(world, options);
    const std::string page =
        runtime::read_text_file(options.run_folder / "report.html");
    for (const char* expected :
         {"Where the time of a step goes",
          "exposed transfer",
          "Training loss",
          "Learning rate"}) {
      EXPECT_NE(page.find(expected), std::string::npos) << expected;
    }
    bool has_events = false;
    for (const auto& entry :
         std::filesystem::directory_iterator(options.run_folder)) {
      has_events |=
          entry.path().filename().string().starts_with("events.out.tfevents.");
    }
    EXPECT_TRUE(has_events);

    options.run_folder = folder.path() / "untimed";
    std::filesystem::create_directories(options.run_folder);
    options.step_timing = false;
    run(world, options);
    EXPECT_FALSE(lines_of(options.run_folder)[0].contains("forward_s"));
    EXPECT_EQ(
        runtime::read_text_file(options.run_folder / "report.html")
            .find("Where the time"),
        std::string::npos);
  });
}

TEST(TrainerLog, CountsOperationsBesideAMeasuredPeak) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto options = options_of(folder.path() / "run", 1);
    run(world, options);
    if (world.rank() != 0) {
      return;
    }
    for (const auto& line : lines_of(options.run_folder)) {
      // Ranks, micro-batches, rows; the first layer has no gradient of its
      // input. Nothing is counted twice.
      const double forward = 2.0 * (kWidth * kWidth + kWidth);
      const double backward = 2.0 * (kWidth * kWidth + 2 * kWidth);
      EXPECT_EQ(line["flops"], 2 * 2 * 4 * (forward + backward));
      EXPECT_FALSE(line.contains("mfu"));
      EXPECT_NEAR(
          line["of_measured_peak"].get<double>(),
          line["flops"].get<double>() /
              (line["step_s"].get<double>() *
               line["peak_flops_per_s"].get<double>()),
          1e-12);
    }
    const std::string page =
        runtime::read_text_file(options.run_folder / "report.html");
    EXPECT_NE(page.find("model FLOP per step / ("), std::string::npos);
  });
}

TEST(TrainerLog, GivesLinesToAllSinks) {
  struct Recorder : MetricSink {
    void begin(const MetricRun& run) override {
      EXPECT_EQ(run.name, "run");
      resumed.push_back(run.resumed_step());
    }
    void write(const nlohmann::ordered_json& line) override {
      steps.push_back(line.at("step"));
      if (steps.back() == 2) {
        TESSERA_FAIL("full"); // a warning
      }
    }
    void finish() override {
      is_finished = true;
    }
    std::vector<int64_t> resumed;
    std::vector<int64_t> steps;
    bool is_finished = false;
  };
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    auto options = options_of(folder.path() / "run", 1);
    const auto sink = std::make_shared<Recorder>();
    options.metrics = {"csv", "wandb"};
    options.sinks = {sink};
    options.max_steps = 3;
    run(world, options);
    EXPECT_EQ(sink->steps, (std::vector<int64_t>{1, 2, 3}));
    EXPECT_TRUE(sink->is_finished);
    options.max_steps = 5;
    options.resume = true;
    run(world, options);
    EXPECT_EQ(sink->resumed, (std::vector<int64_t>{0, 3}));
    EXPECT_EQ(sink->steps, (std::vector<int64_t>{1, 2, 3, 4, 5}));

    std::istringstream table(
        runtime::read_text_file(options.run_folder / "metrics.csv"));
    std::vector<std::string> rows;
    for (std::string row; std::getline(table, row);) {
      rows.push_back(row);
    }
    ASSERT_EQ(rows.size(), 6U);
    EXPECT_TRUE(rows[0].starts_with("step,epoch,loss,lr,"));
    EXPECT_TRUE(rows[5].starts_with("5,"));
    EXPECT_TRUE(std::filesystem::is_directory(options.run_folder / "wandb"));
    for (const auto& entry :
         std::filesystem::directory_iterator(options.run_folder)) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("events."));
    }
    add_final_metrics(options, {{"step", 5}, {"heldout_loss", 1.5}});
    EXPECT_EQ(sink->steps.back(), 5);
    options.metrics = {"tensorbord"};
    options.run_folder = folder.path() / "other";
    std::filesystem::create_directories(options.run_folder);
    options.resume = false;
    expect_error(
        [&] { run(world, options); },
        {"output.metrics has 'tensorbord'", "jsonl, tensorboard, csv, wandb"});
  });
}

TEST(TrainerLog, ALossThatIsNoNumberNamesItsSteps) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    // Batches 0 and 1 are step 1's.
    expect_error(
        [&] { run(world, options_of(folder.path() / "each", 1), 2); },
        {"loss of step 2", "nan"});
    expect_error(
        [&] { run(world, options_of(folder.path() / "some", 3), 2); },
        {"the gradient of parameter '", "is not finite in step 2"});
  });
}

} // namespace tessera::engine::trainer_log_test

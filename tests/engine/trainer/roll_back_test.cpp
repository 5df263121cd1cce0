// SPDX-License-Identifier: Apache-2.0
// A run that meets a bad loss returns to its newest checkpoint and ends as if
// the samples had never been there.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/trainer/loss_watch.h"
#include "tessera/engine/trainer/run_position.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/trainer.h"

#include <limits>
#include <vector>

namespace tessera::engine::roll_back_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;

/// Batches by number, one of which may be poisoned.
class NumberedTask : public TrainingTask {
 public:
  NumberedTask(Restless net, std::vector<int64_t> batches)
      : net_(std::move(net)), batches_(std::move(batches)) {}

  int64_t batches_per_epoch() const override {
    return static_cast<int64_t>(batches_.size());
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t epoch) override {
    epoch_ = epoch;
  }
  MicroBatch forward(int64_t index) override {
    const int64_t batch = batches_.at(static_cast<size_t>(index));
    TESSERA_CHECK(done_++ != dies_at, "the machine is gone");
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(100 * epoch_ + batch));
    const auto x = torch::randn({5, 7}, generator);
    const auto loss = net_->forward(x).square().mean();
    if (batch != poisoned) {
      return {loss, 35};
    }
    if (poisons_gradient) { // by the root of 0
      return {loss + (loss - loss.detach()).square().sqrt(), 35};
    }
    return {loss * poison, 35};
  }

  int64_t poisoned = -1;
  double poison = std::numeric_limits<double>::quiet_NaN();
  bool poisons_gradient = false; ///< of a loss that is finite
  int64_t dies_at = -1;

 private:
  Restless net_;
  std::vector<int64_t> batches_;
  int64_t epoch_ = 0;
  int64_t done_ = 0;
};

std::vector<int64_t> batches_but(int64_t missing) {
  std::vector<int64_t> batches;
  for (int64_t i = 0; i < 14; ++i) {
    if (i != missing) {
      batches.push_back(i);
    }
  }
  return batches;
}

TrainerOptions options_of(const fs::path& folder) {
  fs::create_directories(folder);
  TrainerOptions options;
  options.schedule.decay = LrDecay::kConstant;
  options.save_minutes = 0;
  options.save_every = 2;
  options.on_bad_loss = OnBadLoss::kRollBack;
  options.run_folder = folder;
  return options;
}

using Values = std::map<std::string, at::Tensor>;

/// @param change of the task.
Values trained(
    World& world,
    const TrainerOptions& options,
    int64_t missing,
    int64_t steps,
    const std::function<void(NumberedTask&)>& change = {},
    bool in_background = false) {
  auto net = make_restless(1, torch::kFloat);
  auto engine_options = group_per_layer();
  engine_options.save_in_background = in_background;
  auto engine = wrap(net, engine_options);
  torch::manual_seed(4 + world.rank());
  NumberedTask task(net, batches_but(missing));
  if (change) {
    change(task);
  }
  EXPECT_EQ(train(world, engine, task, options).steps, steps);
  return values_of(engine, *net);
}

} // namespace

TEST(RollBack, EndsAsIfTheSamplesHadNotBeenThere) {
  for (const bool in_background : {false, true}) {
    for (const double poison : {std::nan(""), 1e4}) {
      const TemporaryFolder folder;
      run_ranks(2, [&](World& world) {
        const auto expected =
            trained(world, options_of(folder / "without"), 11, 13);
        auto options = options_of(folder / "run");
        options.loss_spike = 100;
        const auto got = trained(
            world,
            options,
            -1,
            13,
            [&](NumberedTask& task) {
              task.poisoned = 11;
              task.poison = poison;
            },
            in_background);
        expect_equal(got, expected, "rolled back");
        if (world.rank() == 0) {
          const auto lines = read_metrics(folder / "run");
          ASSERT_EQ(lines.size(), 13U);
          for (size_t i = 0; i < lines.size(); ++i) {
            EXPECT_EQ(lines[i].step, static_cast<int64_t>(i) + 1);
          }
        }
      });
    }
  }
}

TEST(RollBack, FollowsAGradientThatIsNotFinite) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto expected =
        trained(world, options_of(folder / "without"), 10, 13);
    // With and without a line of the log at the bad step, which is the 11th.
    for (const int log_every : {1, 3}) {
      auto options = options_of(folder / std::to_string(log_every));
      options.log_every = log_every;
      const auto got = trained(world, options, -1, 13, [&](NumberedTask& task) {
        task.poisoned = 10;
        task.poisons_gradient = true;
      });
      expect_equal(got, expected, "rolled back");
    }
    auto stops = options_of(folder / "stops");
    stops.on_bad_loss = OnBadLoss::kStop;
    expect_error(
        [&] {
          trained(world, stops, -1, 13, [](NumberedTask& task) {
            task.poisoned = 10;
            task.poisons_gradient = true;
          });
        },
        {"the gradient of parameter '", "is not finite in step 11"});
  });
}

// Neither does a resumed run see them again, nor the second epoch do without.
TEST(RollBack, IsRememberedByCheckpoints) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto poisons = [](NumberedTask& task) { task.poisoned = 5; };
    auto full = options_of(folder / "whole");
    const auto expected = trained(world, full, -1, 13, poisons);
    const auto options = options_of(folder / "broken");
    {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      torch::manual_seed(4 + world.rank());
      NumberedTask task(net, batches_but(-1));
      poisons(task);
      task.dies_at = 10;
      EXPECT_THROW(train(world, engine, task, options), Error);
    }
    auto resuming = options;
    resuming.resume = true;
    expect_equal(
        trained(world, resuming, -1, 13, poisons), expected, "resumed");
  });
}

TEST(RollBack, EndsWhereThereIsNothingToReturnTo) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto poisons = [](NumberedTask& task) { task.poisoned = 1; };
    expect_error(
        [&] { trained(world, options_of(folder / "early"), -1, 13, poisons); },
        {"the loss of step 2 is nan", "There is no checkpoint"});
    auto stops = options_of(folder / "stops");
    stops.on_bad_loss = OnBadLoss::kStop;
    expect_error(
        [&] { trained(world, stops, -1, 13, poisons); },
        {"the loss of step 2 is nan", "training.on_bad_loss=roll_back"});
    expect_error(
        [&] {
          trained(world, options_of(folder / "first"), -1, 13, [](auto& task) {
            task.poisoned = 0;
          });
        },
        {"the loss of step 1 is nan", "the weights that training starts from"});
  });
}

TEST(RollBack, PositionsPassWhatIsSkipped) {
  RunPosition position({0, 4, 10});
  position.skipped = {{5, 7}, {7, 9}, {12, 13}};
  position.batch = 4;
  EXPECT_FALSE(position.pass_skipped());
  EXPECT_EQ(position.skipped_ahead(), 5);
  position.batch = 5;
  EXPECT_TRUE(position.pass_skipped());
  EXPECT_EQ(position.batch, 9);
  EXPECT_EQ(position.skipped_ahead(), 1);
  // Batches of another size, which have any of the samples.
  RunPosition other({0, 6, 7});
  other.load_state(position.save_state());
  ASSERT_EQ(other.skipped.size(), 3U);
  EXPECT_EQ(other.skipped[0], (RunPosition::Range{3, 5}));
  EXPECT_EQ(other.skipped[2], (RunPosition::Range{8, 9}));
  position.load_state(position.save_state()); // known ones once
  EXPECT_EQ(position.skipped.size(), 3U);
}

TEST(LossWatch, ComparesWithTheMedian) {
  LossWatch watch(3);
  for (int i = 1; i <= 8; ++i) {
    EXPECT_EQ(watch.add(i == 4 ? 50 : 1, i, i), std::nullopt); // too few
  }
  EXPECT_EQ(watch.add(2.9, 9, 10), std::nullopt);
  const auto problem = watch.add(3.1, 11, 14);
  ASSERT_TRUE(problem.has_value());
  EXPECT_NE(problem->find("over steps 11 to 14 is 3.1"), std::string::npos)
      << *problem;
  watch.rewind(7); // seven are too few again
  EXPECT_EQ(watch.add(100, 8, 8), std::nullopt);
  EXPECT_EQ(watch.add(-std::nan(""), 9, 9), "the loss of step 9 is nan");
  LossWatch off(0);
  for (int i = 1; i <= 20; ++i) {
    EXPECT_EQ(off.add(i * i * i, i, i), std::nullopt);
  }
}

} // namespace tessera::engine::roll_back_test

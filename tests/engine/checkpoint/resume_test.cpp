// SPDX-License-Identifier: Apache-2.0
// On the same ranks, what is loaded goes on as what was saved, bit for bit.
#include "engine/checkpoint/checkpoint_support.h"
#include "engine/optim/every_rule.h"

#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/schedule/lr_scheduler.h"

namespace tessera::engine::resume_test {

namespace {

using namespace tests;

/// Optimizer steps; those that an overflow skipped do not count.
int64_t steps_of(const std::filesystem::path& checkpoint) {
  return read_manifest(checkpoint).step;
}

void expect_resumes(
    World& world,
    const std::filesystem::path& folder,
    const EngineOptions& options,
    const std::string& label) {
  auto net = make_restless(1, torch::kFloat);
  auto engine = wrap(net, options);
  // Every rank draws numbers of its own.
  torch::manual_seed(77 + world.rank());
  train_steps(engine, net, 3);
  engine.set_learning_rate(0.004);
  const auto path = engine.save(folder);
  const double scale = engine.loss_scale();
  train_steps(engine, net, 3);
  const auto expected = values_of(engine, *net);

  auto other = make_restless(2, torch::kFloat);
  auto resumed = wrap(other, options);
  train_steps(resumed, other, 2); // a plan and moments of its own
  EXPECT_EQ(resumed.load(path), steps_of(path));
  EXPECT_EQ(resumed.loss_scale(), scale);
  EXPECT_EQ(resumed.learning_rate(), 0.004);
  train_steps(resumed, other, 3);
  expect_equal(values_of(resumed, *other), expected, label);
}

EngineOptions options_of(const OptimizerOptions& optimizer) {
  EngineOptions options = group_per_layer();
  options.optimizer = optimizer;
  options.optimizer.lr = 0.01;
  return options;
}

} // namespace

class Resume : public ::testing::TestWithParam<int> {};

TEST_P(Resume, IsBitEqualWithEveryOptimizer) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    int number = 0; // SGD is there twice
    for (const UpdateRule& rule : every_rule()) {
      OptimizerOptions optimizer;
      optimizer.rule = rule;
      expect_resumes(
          world,
          folder / std::to_string(number++),
          options_of(optimizer),
          name_of(rule));
    }
    OptimizerOptions user;
    user.rule = UserOptimizerOptions{[](auto groups) {
      return std::make_unique<torch::optim::Adam>(
          std::move(groups), torch::optim::AdamOptions(1));
    }};
    expect_resumes(world, folder / "user", options_of(user), "user's Adam");
  });
}

// The random numbers of stochastic rounding go on, too.
TEST_P(Resume, IsBitEqualWithMomentsInBfloat16) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    int number = 0;
    for (const UpdateRule& rule : every_rule()) {
      if (!rule.optimizer().takes_moment_dtype()) {
        continue;
      }
      OptimizerOptions optimizer;
      optimizer.rule = rule;
      optimizer.moment_dtype = at::kBFloat16;
      optimizer.stochastic_rounding = true;
      expect_resumes(
          world,
          folder / std::to_string(number++),
          options_of(optimizer),
          name_of(rule));
    }
  });
}

// The loss scale and its counters too: float16 begins with overflows.
TEST_P(Resume, IsBitEqualInLowPrecisionWithMasterWeights) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      auto options = options_of({});
      options.precision.parameters = dtype;
      options.loss_scale.initial = 1e7;
      options.loss_scale.growth_interval = 2;
      expect_resumes(
          world, folder / c10::toString(dtype), options, c10::toString(dtype));
    }
  });
}

TEST_P(Resume, StatesOfTheUserComeBack) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    LrScheduleOptions schedule;
    schedule.total_steps = 10;
    LrScheduler scheduler(0.5, schedule);
    scheduler.step(engine);
    scheduler.step(engine);
    train_steps(engine, net, 1);
    engine.save(folder.path(), {&scheduler});
    LrScheduler other(0.5, schedule);
    engine.load(folder.path(), {&other});
    EXPECT_EQ(other.steps(), 2);
    EXPECT_EQ(other.learning_rate(), scheduler.learning_rate());
    expect_throws(
        [&] {
          engine.save(folder.path(), {&scheduler, &other});
        },
        {"'lr_scheduler'"});
    EXPECT_EQ(world.size(), GetParam());
  });
}

TEST_P(Resume, KeepsTheLastOnesAndReplacesTheSameStep) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    for (int i = 0; i < 4; ++i) {
      train_steps(engine, net, 1);
      engine.save(folder.path(), {}, 2);
      engine.save(folder.path(), {}, 2);
    }
    if (world.rank() == 0) {
      const auto all = list_checkpoints(folder.path());
      ASSERT_EQ(all.size(), 2);
      EXPECT_EQ(all[0].filename(), "step-000003");
      EXPECT_EQ(all[1].filename(), "step-000004");
      EXPECT_EQ(folder.count(), 2); // nothing hidden is left
    }
    EXPECT_EQ(engine.load(folder.path()), 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Resume, ::testing::Range(1, 4));

} // namespace tessera::engine::resume_test

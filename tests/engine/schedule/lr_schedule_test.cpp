// SPDX-License-Identifier: Apache-2.0
// Schedules against their formulas, at their corners.
#include "tessera/engine/schedule/lr_schedule.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::engine::lr_schedule_test {

namespace {

LrScheduleOptions options_of(LrDecay decay) {
  LrScheduleOptions options;
  options.decay = decay;
  options.warmup_steps = 4;
  options.total_steps = 14;
  return options;
}

constexpr double kPi = 3.14159265358979323846;

} // namespace

TEST(LrSchedule, WarmsUpLinearlyToThePeak) {
  for (const auto& [name, decay] : lr_decay_names()) {
    if (decay == LrDecay::kOneCycle) {
      continue;
    }
    const auto options = options_of(decay);
    EXPECT_DOUBLE_EQ(lr_factor_at(options, 0), 0.25) << name;
    EXPECT_DOUBLE_EQ(lr_factor_at(options, 3), 1) << name;
  }
}

TEST(LrSchedule, WarmUpMayBeAFractionOfTheRun) {
  LrScheduleOptions options;
  options.warmup_fraction = 0.03;
  for (const auto& [total, expected] :
       {std::pair<int64_t, int64_t>{33, 0}, {34, 1}, {400, 12}}) {
    options.total_steps = total;
    EXPECT_EQ(warmup_steps_of(options), expected) << total;
  }
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 0), 1.0 / 12);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 11), 1);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 12 + 194), 0.5);
  check(options);
  options.warmup_steps = 5;
  expect_error(
      [&] { check(options); }, {"schedule.warmup_fraction is 0.03", "is 5"});
}

TEST(LrSchedule, ConstantStaysForever) {
  EXPECT_EQ(lr_factor_at(options_of(LrDecay::kConstant), 1'000'000), 1);
}

TEST(LrSchedule, LinearReachesTheFinalFactorAfterTheLastStep) {
  auto options = options_of(LrDecay::kLinear);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 4), 1);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 9), 0.5);
  EXPECT_NEAR(lr_factor_at(options, 13), 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 14), 0);
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 99), 0);
  options.final_factor = 0.2;
  EXPECT_NEAR(lr_factor_at(options, 9), 0.6, 1e-12);
  EXPECT_NEAR(lr_factor_at(options, 14), 0.2, 1e-12);
}

TEST(LrSchedule, CosineHalvesInTheMiddle) {
  auto options = options_of(LrDecay::kCosine);
  options.final_factor = 0.1;
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 4), 1);
  EXPECT_NEAR(
      lr_factor_at(options, 6),
      0.1 + 0.9 * (1 + std::cos(kPi * 0.2)) / 2,
      1e-12);
  EXPECT_NEAR(lr_factor_at(options, 9), 0.55, 1e-12);
  EXPECT_NEAR(lr_factor_at(options, 14), 0.1, 1e-12);
}

TEST(LrSchedule, PolynomialHasItsPower) {
  auto options = options_of(LrDecay::kPolynomial);
  options.power = 3;
  EXPECT_NEAR(lr_factor_at(options, 9), 0.125, 1e-12);
  EXPECT_NEAR(lr_factor_at(options, 14), 0, 1e-12);
}

TEST(LrSchedule, NoamFallsWithTheRootOfTheStep) {
  auto options = options_of(LrDecay::kNoam);
  EXPECT_NEAR(lr_factor_at(options, 15), 0.5, 1e-12);
  options.warmup_steps = 0;
  EXPECT_NEAR(lr_factor_at(options, 8), 1.0 / 3, 1e-12);
}

TEST(LrSchedule, ExponentialStepAndMultiStep) {
  auto options = options_of(LrDecay::kExponential);
  options.gamma = 0.5;
  EXPECT_NEAR(lr_factor_at(options, 7), 0.125, 1e-12);
  options.decay = LrDecay::kStep;
  options.step_size = 3;
  EXPECT_EQ(lr_factor_at(options, 6), 1);
  EXPECT_EQ(lr_factor_at(options, 7), 0.5);
  EXPECT_EQ(lr_factor_at(options, 10), 0.25);
  options.decay = LrDecay::kMultiStep;
  options.milestones = {6, 10};
  EXPECT_EQ(lr_factor_at(options, 5), 1);
  EXPECT_EQ(lr_factor_at(options, 6), 0.5);
  EXPECT_EQ(lr_factor_at(options, 10), 0.25);
}

// The values of torch.optim.lr_scheduler.OneCycleLR with max_lr 1, 10 steps,
// and its defaults.
TEST(LrSchedule, OneCycleEqualsTorch) {
  LrScheduleOptions options;
  options.decay = LrDecay::kOneCycle;
  options.total_steps = 10;
  const double expected[] = {
      0.04,
      0.52,
      1.0,
      0.9504846320134738,
      0.8117456539497631,
      0.6112620219362892,
      0.38874197806371074,
      0.18825834605023698,
      0.04951936798652628,
      4e-06};
  for (int step = 0; step < 10; ++step) {
    EXPECT_NEAR(lr_factor_at(options, step), expected[step], 1e-6) << step;
  }
}

TEST(LrSchedule, WsdIsStableThenDecays) {
  auto options = options_of(LrDecay::kWsd);
  options.decay_steps = 5;
  options.final_factor = 0.5;
  EXPECT_EQ(lr_factor_at(options, 9), 1);
  EXPECT_NEAR(lr_factor_at(options, 10), 0.9, 1e-12);
  EXPECT_NEAR(lr_factor_at(options, 14), 0.5, 1e-12);
}

TEST(LrSchedule, WarmUpMayBeLongerThanTheRun) {
  auto options = options_of(LrDecay::kLinear);
  options.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(lr_factor_at(options, 13), 0.7);
}

TEST(LrSchedule, WrongOptionsAreNamed) {
  auto options = options_of(LrDecay::kLinear);
  options.final_factor = 2;
  expect_error([&] { check(options); }, {"final_factor is 2", "from 0 to 1"});
}

TEST(LrSchedule, OptionsThatAreNotFollowedAreRefused) {
  for (const auto& [name, decay] : lr_decay_names()) {
    auto options = options_of(decay);
    options.warmup_steps = 0;
    options.final_factor = 0.5;
    options.decay_steps = 1;
    const bool ends_there = name == "linear" || name == "cosine" ||
                            name == "polynomial" || name == "wsd";
    if (ends_there) {
      EXPECT_NO_THROW(check(options)) << name;
      EXPECT_DOUBLE_EQ(lr_factor_at(options, options.total_steps), 0.5) << name;
    } else {
      expect_error(
          [&] { check(options); },
          {"schedule.final_factor is 0.5", name.c_str()});
    }
  }
  auto options = options_of(LrDecay::kOneCycle);
  options.warmup_steps = 3;
  expect_error(
      [&] { check(options); }, {"schedule.warmup_steps is 3", "rise_fraction"});
  options.warmup_steps = 0;
  options.warmup_fraction = 0.1;
  expect_error([&] { check(options); }, {"schedule.warmup_fraction is 0.1"});
}

} // namespace tessera::engine::lr_schedule_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/lr_schedule.h"

#include <gtest/gtest.h>

namespace tessera {

TEST(LrSchedule, RisesLinearlyThenFallsToZeroAfterTheLastStep) {
  LrScheduleOptions options;
  options.peak_lr = 1.0;
  options.warmup_steps = 4;
  options.total_steps = 12;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 8), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 11), 0.125);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 12), 0.0);
}

TEST(LrSchedule, StaysConstantWhenAsked) {
  LrScheduleOptions options;
  options.peak_lr = 0.5;
  options.warmup_steps = 1;
  options.decay = LrScheduleOptions::Decay::kConstant;
  options.total_steps = 3;
  for (int64_t step = 0; step < 3; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate_at(options, step), 0.5);
  }
}

TEST(LrSchedule, WarmUpMayBeLongerThanTheRun) {
  LrScheduleOptions options;
  options.peak_lr = 1.0;
  options.warmup_steps = 10;
  options.total_steps = 2;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 1), 0.2);
}

} // namespace tessera

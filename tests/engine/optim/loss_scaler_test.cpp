// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/loss_scaler.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

namespace tessera::engine::loss_scaler_test {

TEST(LossScaler, OnlyFloat16NeedsOne) {
  const LossScaler none({}, /*low_range=*/false);
  EXPECT_FALSE(none.is_active());
  EXPECT_EQ(none.scale(), 1);
  const LossScaler dynamic({}, /*low_range=*/true);
  EXPECT_TRUE(dynamic.is_active());
  EXPECT_EQ(dynamic.scale(), 65536);
}

TEST(LossScaler, WithoutOneTheScaleStays1) {
  LossScaler none({.growth_interval = 1}, /*low_range=*/false);
  none.update(false);
  none.update(false);
  EXPECT_EQ(none.scale(), 1);
  none.restore({.scale = 1024, .good_steps = 0, .skipped_steps = 0});
  EXPECT_EQ(none.scale(), 1);
}

TEST(LossScaler, ShrinksAfterAnOverflowAndGrowsAfterGoodSteps) {
  LossScaler scaler({.initial = 8, .growth_interval = 3}, true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_EQ(scaler.skipped_steps(), 1);
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  // An overflow begins the count anew.
  scaler.update(false);
  scaler.update(false);
  scaler.update(true);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(LossScaler, FailsWhenTheSmallestScaleOverflows) {
  LossScaler scaler({.initial = 2, .minimum = 1}, true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  expect_error([&] { scaler.update(true); }, {"smallest loss scale", "1"});
}

TEST(LossScaler, AFixedScaleStays) {
  LossScaler scaler({.fixed = 128}, false);
  EXPECT_TRUE(scaler.is_active());
  scaler.update(true);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.skipped_steps(), 1);
}

TEST(LossScaler, IsLimitedForFloat16Losses) {
  LossScaler scaler({.initial = 65536, .growth_interval = 1}, true);
  scaler.limit_for_float16_loss();
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.skipped_steps(), 0);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.limit_for_float16_loss();
  EXPECT_EQ(scaler.scale(), 32768);
  LossScaler fixed({.fixed = 65536}, true);
  expect_error(
      [&] { fixed.limit_for_float16_loss(); },
      {"loss_scale.fixed is 65536", "at most 32768"});
}

TEST(LossScaler, GoesOnFromASavedState) {
  LossScaler scaler({.initial = 8, .growth_interval = 3}, true);
  scaler.update(true);
  scaler.update(false);
  scaler.update(false);
  LossScaler resumed({.initial = 8, .growth_interval = 3}, true);
  resumed.restore(scaler.state());
  resumed.update(false);
  EXPECT_EQ(resumed.scale(), 8);
  EXPECT_EQ(resumed.skipped_steps(), 1);
}

TEST(LossScaler, OptionsOutsideTheirRangeAreNamed) {
  expect_error([] { check({.initial = 0}); }, {"loss_scale.initial", "0"});
  expect_error(
      [] { check({.backoff_factor = 1}); }, {"loss_scale.backoff_factor"});
  expect_error(
      [] { check({.growth_interval = 0}); }, {"loss_scale.growth_interval"});
}

} // namespace tessera::engine::loss_scaler_test

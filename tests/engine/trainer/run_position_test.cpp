// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_position.h"

#include <gtest/gtest.h>

namespace tessera::engine::run_position_test {

namespace {

/// A position saved with `saved`'s batches and loaded with `loaded`'s.
struct Layout {
  int64_t batches_per_epoch;
  int64_t batch_samples;
  int64_t samples = 0; ///< 0: batches begin nowhere else
  int64_t per_step = 1;
};

RunPosition position_in(const Layout& layout) {
  return RunPosition(
      {layout.samples,
       layout.batch_samples,
       layout.batches_per_epoch,
       layout.per_step});
}

RunPosition moved(const Layout& saved, int64_t batch, const Layout& loaded) {
  RunPosition before = position_in(saved);
  before.steps = 3;
  before.batch = batch;
  RunPosition after = position_in(loaded);
  after.load_state(before.save_state());
  EXPECT_EQ(after.steps, 3);
  return after;
}

} // namespace

TEST(RunPosition, IsTheSameUnderTheSameLayout) {
  for (int64_t batch = 0; batch < 12; ++batch) {
    const auto after = moved({5, 8}, batch, {5, 8});
    EXPECT_EQ(after.batch, batch);
    EXPECT_EQ(after.repeated_samples(), 0);
  }
}

// 43 samples: 5 batches of 8 leave 3, 10 of 4 leave 3, 3 of 12 leave 7.
TEST(RunPosition, CountsSamplesUnderAnother) {
  EXPECT_EQ(moved({5, 8}, 7, {10, 4}).batch, 10 + 4);
  EXPECT_EQ(moved({10, 4}, 14, {5, 8}).batch, 5 + 2);
  const auto within = moved({5, 8}, 2, {3, 12}); // 16 samples
  EXPECT_EQ(within.batch, 1);
  EXPECT_EQ(within.repeated_samples(), 4);
  // What is left fills no batch: the next epoch.
  const auto end = moved({10, 4}, 9, {3, 12}); // 36 samples
  EXPECT_EQ(end.batch, 3);
  EXPECT_EQ(end.repeated_samples(), 0);
}

TEST(RunPosition, GoesOnAtTheSampleUnderAnother) {
  // 16 samples of 43 leave two batches of 12, not three.
  auto after = moved({5, 8, 43}, 2, {3, 12, 43});
  EXPECT_EQ(after.repeated_samples(), 0);
  EXPECT_EQ(after.batch, 1);
  EXPECT_EQ(after.position_of(after.batch).samples, 16);
  EXPECT_EQ(after.position_of(2).samples, 28);
  EXPECT_EQ(after.position_of(3).epoch, 1);
  EXPECT_EQ(after.position_of(3).samples, 0);
  // So do 16 of 40; of 39, one.
  EXPECT_EQ(moved({5, 8, 40}, 2, {3, 12, 40}).batch, 1);
  after = moved({4, 8, 39}, 2, {3, 12, 39});
  EXPECT_EQ(after.position_of(after.batch).samples, 16);
  EXPECT_EQ(after.batch, 2);
  // It is saved as it is, and goes on from there under a third.
  RunPosition third = position_in({7, 5, 39});
  third.load_state(after.save_state());
  EXPECT_EQ(third.position_of(third.batch).samples, 16);
  after.restart();
  EXPECT_EQ(after.position_of(1).samples, 12);
}

TEST(RunPosition, LeavesWholeStepsOfAnEpoch) {
  // 24 samples of 40 leave four batches of 4: two steps of 2, one of 3.
  EXPECT_EQ(moved({5, 8, 40}, 3, {10, 4, 40, 2}).batch, 6);
  auto after = moved({5, 8, 40}, 3, {9, 4, 40, 3});
  EXPECT_EQ(after.batch, 6);
  EXPECT_EQ(after.position_of(6).samples, 24);
  EXPECT_EQ(after.position_of(8).samples, 32);
  // And two of 8, though an epoch has four of them, 8 samples being left out.
  after = moved({10, 4, 40}, 6, {4, 8, 40, 2});
  EXPECT_EQ(after.batch, 2);
  EXPECT_EQ(after.position_of(2).samples, 24);
  EXPECT_EQ(after.position_of(3).samples, 32);
  EXPECT_EQ(after.repeated_samples(), 0);
  // 28 leave no step.
  after = moved({10, 4, 40}, 7, {4, 8, 40, 2});
  EXPECT_EQ(after.batch, 4);
  EXPECT_EQ(after.position_of(4).epoch, 1);
  EXPECT_EQ(after.position_of(4).samples, 0);
  // Steps that have samples of several epochs anyway.
  EXPECT_EQ(moved({5, 8, 40}, 3, {5, 8, 40, 2}).batch, 3);
  // Where batches begin nowhere else, a step begins anew.
  after = moved({10, 4}, 7, {4, 8, 0, 2});
  EXPECT_EQ(after.batch, 2);
  EXPECT_EQ(after.repeated_samples(), 12);
  // Of an epoch that is shorter than its samples nothing is added.
  EXPECT_EQ(moved({4, 4, 100}, 2, {4, 4, 100, 2}).batch, 2);
}

} // namespace tessera::engine::run_position_test

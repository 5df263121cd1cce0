// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_position.h"

#include <gtest/gtest.h>

namespace tessera::engine::run_position_test {

namespace {

/// A position saved with `saved`'s batches and loaded with `loaded`'s.
struct Layout {
  int64_t batches_per_epoch;
  int64_t batch_samples;
};

RunPosition moved(const Layout& saved, int64_t batch, const Layout& loaded) {
  RunPosition before(saved.batches_per_epoch, saved.batch_samples);
  before.steps = 3;
  before.batch = batch;
  RunPosition after(loaded.batches_per_epoch, loaded.batch_samples);
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

} // namespace tessera::engine::run_position_test

// SPDX-License-Identifier: Apache-2.0
// The rate of copies beside the host's work, from when all of them had ended.
#include "tessera/offload/stores/transfer_rates.h"

#include <gtest/gtest.h>

namespace tessera::offload::transfer_rates_test {

TEST(SecondsWhileBusy, AreThoseAloneWhereNothingSlowsCopies) {
  // The work ends in the middle, behind the end, and at once.
  for (const double busy : {10.0, 25.0, 0.0}) {
    EXPECT_DOUBLE_EQ(seconds_while_busy(10, 20, busy, 2), 2) << busy;
  }
}

TEST(SecondsWhileBusy, CountOnlyWhatWasCopiedMeanwhile) {
  // Of 10 copies 4 take 3 s each, while the host is busy, and 6 take 2 s.
  EXPECT_DOUBLE_EQ(seconds_while_busy(10, 4 * 3 + 6 * 2, 4 * 3, 2), 3);
  // All of them end beside the work.
  EXPECT_DOUBLE_EQ(seconds_while_busy(10, 30, 40, 2), 3);
}

TEST(SecondsWhileBusy, AreNeverLessThanAlone) {
  // Faster than alone, or so short a work that all copies seem to be behind it.
  EXPECT_DOUBLE_EQ(seconds_while_busy(10, 15, 15, 2), 2);
  EXPECT_DOUBLE_EQ(seconds_while_busy(10, 40, 1, 2), 2);
}

} // namespace tessera::offload::transfer_rates_test

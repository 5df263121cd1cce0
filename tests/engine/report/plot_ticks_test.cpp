// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/plot_ticks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tessera::engine::plot_ticks_test {

namespace {

using Labels = std::vector<std::string>;

} // namespace

TEST(MakeTicks, RoundNumbersInsideTheRange) {
  EXPECT_EQ(
      make_ticks(0, 1, 5).labels,
      (Labels{"0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(
      make_ticks(0.3, 2.6, 5).labels,
      (Labels{"0.5", "1.0", "1.5", "2.0", "2.5"}));
  EXPECT_EQ(make_ticks(-7, 7, 4).labels, (Labels{"-5", "0", "5"}));
  EXPECT_EQ(
      make_ticks(0, 60000, 3).labels,
      (Labels{"0", "20,000", "40,000", "60,000"}));
}

TEST(MakeTicks, UnitsForLargeNumbersAndPowersForSmallOnes) {
  EXPECT_EQ(
      make_ticks(0, 2e7, 4).labels, (Labels{"0", "5M", "10M", "15M", "20M"}));
  EXPECT_EQ(make_ticks(0, 3e10, 3).labels, (Labels{"0", "10G", "20G", "30G"}));
  EXPECT_EQ(make_ticks(0, 2e-5, 2).labels, (Labels{"0", "1e-05", "2e-05"}));
  EXPECT_EQ(make_ticks(0, 2e20, 2).labels, (Labels{"0", "1e+20", "2e+20"}));
}

TEST(MakeTicks, WholeNumbersOnRequest) {
  EXPECT_EQ(make_ticks(0, 2, 9, true).labels, (Labels{"0", "1", "2"}));
  EXPECT_EQ(make_ticks(0, 2, 4).labels.at(1), "0.5");
}

TEST(MakeTicks, HoldsItsPromisesOverManyRanges) {
  for (int exponent = -60; exponent <= 60; exponent += 3) {
    for (const double low : {0.0, -1.0, 0.37, 100.0}) {
      for (const double span : {1.0, 1.7, 4.99, 9.1}) {
        const double scale = std::pow(10.0, exponent);
        const double high = low + span;
        const Ticks ticks = make_ticks(low * scale, high * scale, 7);
        SCOPED_TRACE(
            ::testing::Message() << low << " " << high << " " << scale);
        // A step of 1, 2 or 5 leaves at least a third of what was asked for.
        EXPECT_GE(ticks.values.size(), 2u);
        EXPECT_LE(ticks.values.size(), 8u);
        const double slack = 1e-5 * span * scale;
        EXPECT_GE(ticks.values.front(), low * scale - slack);
        EXPECT_LE(ticks.values.back(), high * scale + slack);
        const std::set<std::string> labels(
            ticks.labels.begin(), ticks.labels.end());
        EXPECT_EQ(labels.size(), ticks.labels.size()); // All different.
      }
    }
  }
}

TEST(MakeTicks, NeighboursOnANarrowRangeHaveDifferentLabels) {
  EXPECT_EQ(
      make_ticks(0.999999, 1.000001, 2).labels,
      (Labels{"0.999999", "1.000000", "1.000001"}));
}

TEST(Grouped, CommasBetweenThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
}

TEST(Fixed, HasNoNegativeZero) {
  EXPECT_EQ(fixed(-0.001, 1), "0.0");
  EXPECT_EQ(fixed(-0.06, 1), "-0.1");
  EXPECT_EQ(fixed(2.5, 3), "2.500");
}

} // namespace tessera::engine::plot_ticks_test

// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/pack_reference.h"

#include "support/expect_error.h"
#include "support/power_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::runtime::pack_segments_test {

TEST(PackSegments, ConvertsScalesAndPads) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25, 1.0 / 3}) {
        check_pack({from, to, factor});
      }
    }
  }
}

TEST(PackSegments, Adds) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25}) {
        check_pack(
            {.from = from, .to = to, .factor = factor, .mode = PackMode::kAdd});
      }
    }
  }
}

TEST(PackSegments, RefusesWhatDoesNotFit) {
  const PackSegment shapes{at::zeros({3}), at::zeros({4})};
  expect_error([&] { pack_segments_({&shapes, 1}); }, {"[4]", "[3]"});
  const PackSegment types[] = {
      {at::zeros({3}), {}}, {at::zeros({3}, at::kDouble), {}}};
  expect_error([&] { pack_segments_(types); }, {"same dtype and device"});
}

TEST(PowerSums, AreThoseOfEachRun) {
  at::manual_seed(1);
  const std::vector<at::Tensor> segments = {
      at::randn({70'001}),
      at::empty({0}),
      at::full({3}, std::numeric_limits<float>::infinity()),
      at::randn({5}).to(at::kBFloat16)};
  for (const double p : {1.0, 2.0, 3.0, HUGE_VAL}) {
    const auto sums = power_sums(segments, p);
    ASSERT_EQ(sums.size(), segments.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_EQ(sums[i], power_sums({segments[i]}, p).front());
    }
    EXPECT_EQ(sums[1], 0);
    EXPECT_TRUE(std::isinf(sums[2]));
  }
  EXPECT_TRUE(power_sums({}, 2).empty());
}

} // namespace tessera::runtime::pack_segments_test

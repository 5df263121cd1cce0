// SPDX-License-Identifier: Apache-2.0
// The ratio between updates by the CPU and over streamed state, and how groups
// are divided by it: functions of rates and sizes alone.
#include "tessera/offload/updates/update_split.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::offload::update_split_test {

namespace {

// AdamW with bfloat16 weights and gradients: master and two moments.
constexpr UpdateBytes kBfloat16{.gradient = 2, .weight = 2, .state = 12};

/// An ordinary machine: PCIe 4 with 25 GB/s, a device of 1 TB/s.
UpdateRates rates_with_cpu(double elements_per_second) {
  return {
      .cpu_element = 1 / elements_per_second,
      .device_element = 28 / 1e12,
      .byte_to_device = 1 / 25e9,
      .byte_to_host = 1 / 25e9};
}

int64_t of_cpu(
    const std::vector<int64_t>& numel,
    const std::vector<bool>& by_cpu) {
  int64_t sum = 0;
  for (size_t i = 0; i < numel.size(); ++i) {
    sum += by_cpu[i] ? numel[i] : 0;
  }
  return sum;
}

} // namespace

TEST(BestRatio, MakesBothTakeEquallyLong) {
  for (const double cpu : {2e8, 1e9, 3e9}) {
    const UpdateRates rates = rates_with_cpu(cpu);
    const double ratio = best_ratio(rates, kBfloat16);
    EXPECT_GT(ratio, 0);
    EXPECT_LT(ratio, 1);
    const double by_cpu = ratio * rates.cpu_element;
    const double moved =
        ((1 - ratio) * kBfloat16.state + ratio * kBfloat16.weight) *
        rates.byte_to_device;
    EXPECT_NEAR(by_cpu, moved, 1e-9 * moved); // rounding of a few operations
    EXPECT_DOUBLE_EQ(update_seconds(ratio, rates, kBfloat16), by_cpu);
  }
}

TEST(BestRatio, IsNoWorseThanAnyOther) {
  const UpdateBytes sgd{.gradient = 4, .weight = 4, .state = 0};
  const UpdateBytes lion{.gradient = 4, .weight = 2, .state = 6};
  for (const UpdateBytes& bytes : {kBfloat16, sgd, lion}) {
    for (const double cpu : {1e8, 1e9, 1e10, 1e12}) {
      UpdateRates rates = rates_with_cpu(cpu);
      for (const double to_host : {1 / 5e9, 1 / 25e9, 1 / 300e9}) {
        rates.byte_to_host = to_host;
        const double best =
            update_seconds(best_ratio(rates, bytes), rates, bytes);
        for (int percent = 0; percent <= 100; ++percent) {
          EXPECT_LE(
              best, update_seconds(percent / 100.0, rates, bytes) * (1 + 1e-9));
        }
      }
    }
  }
}

TEST(BestRatio, FollowsTheFasterSide) {
  EXPECT_LT(best_ratio(rates_with_cpu(2e8), kBfloat16), 0.15);
  // So fast a CPU that only its transfers count: less than the state's.
  EXPECT_EQ(best_ratio(rates_with_cpu(1e15), kBfloat16), 1);
  double last = 0;
  for (const double cpu : {1e8, 3e8, 1e9, 3e9, 1e10}) {
    const double ratio = best_ratio(rates_with_cpu(cpu), kBfloat16);
    EXPECT_GT(ratio, last) << cpu;
    last = ratio;
  }
  // Nothing to stream: the device alone is faster than any transfer.
  EXPECT_LT(best_ratio(rates_with_cpu(1e9), {4, 4, 0}), 0.05);
  // A device that cannot update.
  UpdateRates rates = rates_with_cpu(1e9);
  rates.device_element = 1;
  EXPECT_NEAR(best_ratio(rates, kBfloat16), 1, 1e-6);
}

TEST(DivideUpdates, GivesAllOrNothingAtTheEnds) {
  const std::vector<int64_t> numel{1000, 1, 50, 0, 1'000'000, 7};
  EXPECT_EQ(of_cpu(numel, divide_updates(numel, 0)), 0);
  EXPECT_EQ(divide_updates(numel, 1), std::vector<bool>(numel.size(), true));
  EXPECT_TRUE(divide_updates({}, 0.5).empty());
}

TEST(DivideUpdates, KeepsTheRatioAtEveryPoint) {
  std::vector<int64_t> numel;
  for (int i = 0; i < 200; ++i) {
    numel.push_back(100 + (i * 37) % 101);
  }
  for (const double ratio : {0.1, 0.25, 0.5, 0.71, 0.9}) {
    const std::vector<bool> by_cpu = divide_updates(numel, ratio);
    double all = 0;
    double sum = 0;
    for (size_t i = 0; i < numel.size(); ++i) {
      all += static_cast<double>(numel[i]);
      sum += by_cpu[i] ? static_cast<double>(numel[i]) : 0;
      // Half of the largest group.
      EXPECT_NEAR(sum, ratio * all, 100) << ratio << ", " << i;
    }
  }
}

TEST(DivideUpdates, AlternatesForEqualGroups) {
  const std::vector<bool> by_cpu = divide_updates({5, 5, 5, 5, 5, 5}, 0.5);
  EXPECT_EQ(by_cpu, (std::vector<bool>{false, true, false, true, false, true}));
}

} // namespace tessera::offload::update_split_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/device_peak.h"

#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <thread>

namespace tessera::runtime::device_peak_test {

namespace {

double peak_of(
    std::string_view name,
    at::ScalarType dtype = at::kBFloat16,
    bool uses_tf32 = false) {
  return known_peak_flops(name, dtype, uses_tf32).value_or(0) / 1e12;
}

} // namespace

TEST(DevicePeak, KnowsDevicesByTheDriversNames) {
  EXPECT_EQ(peak_of("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(peak_of("NVIDIA A100-SXM4-80GB", at::kFloat), 19.5);
  EXPECT_EQ(peak_of("NVIDIA A100-SXM4-80GB", at::kFloat, true), 156);
  EXPECT_EQ(peak_of("NVIDIA H100 80GB HBM3", at::kHalf), 989.4);
  EXPECT_EQ(peak_of("NVIDIA H100 PCIe"), 756);
  EXPECT_EQ(peak_of("NVIDIA GH200 480GB"), 989.4);
  EXPECT_EQ(peak_of("NVIDIA L40S"), 362);
  EXPECT_EQ(peak_of("NVIDIA L4"), 121);
  EXPECT_EQ(peak_of("Tesla T4", at::kHalf), 65);
  EXPECT_EQ(peak_of("Tesla T4"), 0); // no bfloat16
  // A part of a word is another device, and a laptop's chip is slower.
  EXPECT_EQ(peak_of("NVIDIA RTX A1000"), 0);
  EXPECT_EQ(peak_of("NVIDIA RTX A3000"), 0);
  EXPECT_EQ(peak_of("NVIDIA T400"), 0);
  EXPECT_EQ(peak_of("NVIDIA GeForce RTX 4090 Laptop GPU"), 0);
}

TEST(DevicePeak, KnowsTheMemoryOfDevices) {
  EXPECT_DOUBLE_EQ(
      known_memory_rate("NVIDIA H100 80GB HBM3").value_or(0), 3.35e12);
  EXPECT_DOUBLE_EQ(known_memory_rate("NVIDIA H200").value_or(0), 4.8e12);
  EXPECT_DOUBLE_EQ(
      known_memory_rate("NVIDIA A100-SXM4-40GB").value_or(0), 1.555e12);
  EXPECT_DOUBLE_EQ(
      known_memory_rate("NVIDIA A100-SXM4-80GB").value_or(0), 2.039e12);
  EXPECT_FALSE(known_memory_rate("NVIDIA RTX A1000").has_value());
}

TEST(DevicePeak, IsMeasuredOnceWhereNoneIsKnown) {
  const DevicePeak peak = device_peak(at::kCPU, at::kFloat);
  EXPECT_TRUE(peak.is_measured);
  EXPECT_EQ(peak.device, "cpu");
  EXPECT_GT(peak.flops_per_s, 1e8);
  EXPECT_EQ(device_peak(at::kCPU, at::kFloat).flops_per_s, peak.flops_per_s);
}

// In a run whose memory is counted, or limited to less than a product takes.
// Some processors' float16 products take memory of their own.
TEST(DevicePeak, TakesNoMemoryOfTheRun) {
  install_cpu_memory_counter();
  const int64_t live = cpu_bytes_live();
  reset_cpu_bytes_peak();
  limit_cpu_bytes(live + 1024);
  EXPECT_GT(device_peak(at::kCPU, at::kHalf).flops_per_s, 0);
  limit_cpu_bytes(std::nullopt);
  EXPECT_EQ(cpu_bytes_peak(), live);
}

TEST(UncountedCpuMemory, IsItsThreadsUntilItEnds) {
  install_cpu_memory_counter();
  const int64_t live = cpu_bytes_live();
  at::Tensor kept;
  {
    const UncountedCpuMemory uncounted;
    kept = at::empty({1 << 20});
    std::thread([] { EXPECT_GT(at::empty({64}).numel(), 0); }).join();
    EXPECT_EQ(cpu_bytes_live(), live);
  }
  const at::Tensor counted = at::empty({1 << 20});
  EXPECT_GE(cpu_bytes_live(), live + (4 << 20));
  kept.reset(); // where counting goes on
  EXPECT_GE(cpu_bytes_live(), live + (4 << 20));
}

} // namespace tessera::runtime::device_peak_test

// SPDX-License-Identifier: Apache-2.0
// What tests/support/cuda_devices.h counts.
#include "support/cuda_devices.h"

#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::runtime::cuda_devices_test {

namespace {

/// Ends the process with what count_cuda_devices() says, twice.
[[noreturn]] void exit_with_counts() {
  replace_cuda_backend({.loaded = true, .device_count = 3});
  const int first = tests::count_cuda_devices();
  replace_cuda_backend({.loaded = true, .device_count = 2});
  std::_Exit(10 * first + tests::count_cuda_devices());
}

} // namespace

// In a process of its own: a process counts once.
TEST(CudaDevicesDeathTest, AreCountedOnceByAProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_counts(), ::testing::ExitedWithCode(33), "");
}

} // namespace tessera::runtime::cuda_devices_test

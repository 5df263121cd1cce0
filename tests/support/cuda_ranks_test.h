// SPDX-License-Identifier: Apache-2.0
#pragma once
// The base of tests that start ranks on CUDA devices.

#include "support/cuda_devices.h"
#include "support/ranks.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <chrono>

namespace tessera::tests {

/// Skips where there is no CUDA device. Float32 is computed in float32.
class CudaRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    // Ranks are forked from here. LibTorch computes float32 convolutions in
    // TF32, with factors of 10 bits, unless it is told not to.
    at::globalContext().setAllowTF32CuDNN(false);
  }
  /// Loading LibTorch's CUDA libraries takes seconds.
  static constexpr RankOptions kLimits{
      std::chrono::seconds(240),
      std::chrono::milliseconds(60000)};
};

} // namespace tessera::tests

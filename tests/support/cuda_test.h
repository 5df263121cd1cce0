// SPDX-License-Identifier: Apache-2.0
#pragma once
// The base of tests that use a CUDA device in their own process.

#include "support/cuda_devices.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>

namespace tessera::tests {

/// Skips where there is no CUDA device. LibTorch knows no devices before the
/// back end is loaded, and caches its first answer, so that a test asks the
/// back end and never LibTorch (scripts/check_sources.py).
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runtime::load_cuda_backend().loaded) {
      GTEST_SKIP() << "no CUDA device: " << runtime::load_cuda_backend().reason;
    }
  }
};

} // namespace tessera::tests

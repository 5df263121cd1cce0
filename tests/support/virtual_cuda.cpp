// SPDX-License-Identifier: Apache-2.0
// Makes the virtual device that of the tests in *_gpu_test.cpp.
#include "support/vdev/vdev.h"

#include <gtest/gtest.h>

namespace tessera::tests::vdev {

namespace {

class VirtualCuda : public ::testing::Environment {
 public:
  void SetUp() override {
    install();
  }
};

[[maybe_unused]] const auto* const kVirtualCuda =
    ::testing::AddGlobalTestEnvironment(new VirtualCuda);

} // namespace

} // namespace tessera::tests::vdev

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/nccl_registry.h"

#include "support/expect_error.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace tessera::runtime::nccl_registry_test {

TEST(NcclRegistry, SaysWhyThereIsNoCommunicatorForCuda) {
  if (load_cuda_backend().loaded) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_error(
      [&] { make_nccl_backend(store, {}); },
      {"a communicator for CUDA tensors needs a CUDA device: no CUDA d",
       "keep the model on the CPU"});
  World world(0, 2, 0, store, {});
  expect_error(
      [&] { world.new_communicator("test", at::Device(at::kCUDA, 0)); },
      {"needs a CUDA device"});
}

} // namespace tessera::runtime::nccl_registry_test

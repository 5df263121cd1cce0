// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/nccl_registry.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>

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

// The backend reads them when it is made.
TEST(NcclRegistry, DefaultsOfNcclAreSetBeforeAndKeepWhatTheUserSet) {
  tests::run_ranks(1, [](World&) {
    static std::string order;
    static std::string handling;
    replace_cuda_backend({.loaded = true, .device_count = 1});
    register_nccl_backend(
        {[](const c10::intrusive_ptr<c10d::Store>&,
            const NcclOptions&) -> c10::intrusive_ptr<c10d::Backend> {
           order = ::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
           handling = ::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
           throw std::runtime_error("no NCCL here");
         },
         nullptr});
    const auto store = c10::make_intrusive<c10d::HashStore>();
    ::unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
    EXPECT_THROW(make_nccl_backend(store, {}), std::runtime_error);
    EXPECT_EQ(order, "1");
    EXPECT_EQ(handling, "1");
    ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    EXPECT_THROW(make_nccl_backend(store, {}), std::runtime_error);
    EXPECT_EQ(order, "0");
  });
}

} // namespace tessera::runtime::nccl_registry_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/nccl_registry.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

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

// The flight recorder shows them.
TEST(NcclRegistry, AGroupGetsANameOfItsOwnAndItsRanks) {
  tests::run_ranks(2, [](World& world) {
    static std::vector<NcclOptions> all;
    replace_cuda_backend({.loaded = true, .device_count = 2});
    register_nccl_backend(
        {[](const c10::intrusive_ptr<c10d::Store>& store,
            const NcclOptions& options) -> c10::intrusive_ptr<c10d::Backend> {
           all.push_back(options);
           return make_gloo_backend(
               store, options.rank, options.size, options.timeout);
         },
         [](int device_index) { return std::to_string(device_index); }});
    const at::Device device(
        at::kCUDA, static_cast<c10::DeviceIndex>(world.rank()));
    const int64_t before = nccl_groups_made();
    const auto one = world.new_communicator("pages", device);
    const auto two = world.new_communicator("pages", device);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(nccl_groups_made(), before + 2);
    for (const NcclOptions& options : all) {
      EXPECT_NE(options.name.find("pages"), std::string::npos) << options.name;
      EXPECT_EQ(options.job_ranks, (std::vector<int>{0, 1}));
    }
    EXPECT_NE(all[0].name, all[1].name);
  });
}

} // namespace tessera::runtime::nccl_registry_test

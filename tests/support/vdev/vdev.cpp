// SPDX-License-Identifier: Apache-2.0
#include "support/vdev/vdev.h"

#include "support/vdev/vdev_memory.h"

#include "tessera/runtime/core/cuda_backend.h"

#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

namespace tessera::tests::vdev {

namespace {

constexpr uint64_t kSeeds = 20;
/// The first ones of both pools; an engine with all that it can have takes as
/// many lanes, and a test some streams after those of low priority.
constexpr c10::StreamId kSideStreams[] = {1, 2, 3, 4, 5, 6, 7};
constexpr c10::StreamId kFirstLane = 33;
constexpr int kLanes = 8;

} // namespace

std::vector<Policy> policies(std::vector<Policy> few) {
  using Order = Policy::Order;
  if (std::getenv("TESSERA_SOAK") == nullptr) {
    return few;
  }
  std::vector<Policy> all{
      {Order::kEager}, {Order::kLazy}, {Order::kStarve, 0, 0}};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    all.push_back({Order::kRandom, seed});
  }
  for (const c10::StreamId side : kSideStreams) {
    all.push_back({Order::kStarve, 0, side});
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    all.push_back({Order::kStarve, 0, kFirstLane + lane});
  }
  return all;
}

c10::Stream new_stream(c10::Device device, bool is_lane) {
  return c10::impl::getDeviceGuardImpl(device.type())
      ->getStreamFromGlobalPool(device, is_lane);
}

void use_free_memory(c10::Device device, at::IntArrayRef sizes) {
  constexpr int kBlocks = 4;
  std::vector<at::Tensor> used;
  for (const int64_t numel : sizes) {
    for (int i = 0; i < kBlocks; ++i) {
      used.push_back(at::ones({numel}, at::TensorOptions().device(device)));
    }
  }
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("vdev");
    install_guard();
    install_memory();
    install_hooks();
    install_operators();
    install_kernels();
    install_process_group();
    runtime::replace_cuda_backend(
        {.loaded = true,
         .device_count = kDevices,
         .reason = "",
         .device_type = c10::DeviceType::PrivateUse1});
  });
}

void run_ranks_on_vdev(
    int world_size,
    const Policy& policy,
    const std::function<void(World&)>& body,
    const RankOptions& options) {
  install();
  run_ranks(
      world_size,
      [&](World& world) {
        // Kernels are the CPU's here, and the check's stream would be the first
        // one of the pool, which policies hold back.
        ::setenv("TESSERA_CHECK_KERNELS", "0", /*overwrite=*/0);
        Runtime::instance().set_policy(policy);
        try {
          body(world);
        } catch (const std::exception& error) {
          ADD_FAILURE() << policy.name() << ": " << error.what();
        }
        try {
          for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
            Runtime::instance().synchronize_device(index);
          }
        } catch (const std::exception& error) {
          ADD_FAILURE() << policy.name() << ": " << error.what();
        }
        for (const std::string& text : Runtime::instance().violations()) {
          ADD_FAILURE() << policy.name() << ": " << text;
        }
      },
      options);
}

} // namespace tessera::tests::vdev

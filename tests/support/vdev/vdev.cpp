// SPDX-License-Identifier: Apache-2.0
#include "support/vdev/vdev.h"

#include "support/vdev/vdev_memory.h"

#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>

#include <mutex>

namespace tessera::tests::vdev {

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

void move_to(torch::nn::Module& module, c10::Device to) {
  const auto move = [&](const at::Tensor& tensor) {
    const at::Tensor moved = tensor.detach().to(to);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  };
  for (const at::Tensor& parameter : module.parameters()) {
    move(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    move(buffer);
  }
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

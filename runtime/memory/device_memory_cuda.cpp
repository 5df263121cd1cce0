// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that limits the memory of tensors.

#include "tessera/runtime/memory/device_memory.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

namespace tessera::runtime {

namespace {

void limit(c10::Device device, std::optional<int64_t> bytes) {
  // The allocator exists from the first tensor on.
  const at::Tensor first = at::empty({1}, at::TensorOptions().device(device));
  const c10::DeviceIndex index = first.device().index();
  const size_t total =
      c10::getDeviceAllocator(device.type())->getMemoryInfo(index).second;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      bytes ? std::min(
                  1.0, static_cast<double>(*bytes) / static_cast<double>(total))
            : 1.0,
      index);
}

const bool kRegistered = [] {
  register_device_limit(&limit);
  return true;
}();

} // namespace

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/library_memory.h"

#include "tessera/runtime/core/cuda_backend.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace tessera::engine {

int64_t library_bytes(const World& world, c10::Device device) {
  if (device.is_cpu() ||
      world.local_size() > runtime::load_cuda_backend().device_count) {
    return 0;
  }
  auto* allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) {
    return 0;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor ones =
      at::ones({16, 16}, at::TensorOptions().device(device));
  at::mm(ones, ones);
  try {
    const auto [free, total] = allocator->getMemoryInfo(ones.get_device());
    constexpr auto kAll =
        static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const int64_t held = allocator->getDeviceStats(ones.get_device())
                             .reserved_bytes[kAll]
                             .current;
    return std::max<int64_t>(0, static_cast<int64_t>(total - free) - held);
  } catch (const c10::NotImplementedError&) {
    return 0;
  }
}

} // namespace tessera::engine

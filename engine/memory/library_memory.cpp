// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory/library_memory.h"

#include "tessera/runtime/comm/device_use.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>

namespace tessera::engine {

namespace {

constexpr const char* kLibraryBytesVariable = "TESSERA_LIBRARY_BYTES";

std::optional<int64_t> fixed_library_bytes() {
  const char* text = std::getenv(kLibraryBytesVariable);
  if (text == nullptr) {
    return std::nullopt;
  }
  int64_t bytes = -1;
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, bytes);
  TESSERA_CHECK(
      code == std::errc() && stop == end && bytes >= 0,
      "the environment variable {} is '{}'; expected a number of bytes, or unset it to have them measured",
      kLibraryBytesVariable,
      text);
  return bytes;
}

int64_t measured_library_bytes(const World& world, c10::Device device) {
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
    if (const auto process_bytes =
            runtime::process_device_bytes(ones.device(), held)) {
      return *process_bytes - held;
    }
    if (world.local_size() > runtime::load_cuda_backend().device_count) {
      return 0;
    }
    return std::max<int64_t>(
        0,
        static_cast<int64_t>(total - free) - held -
            runtime::foreign_device_bytes(ones.device()));
  } catch (const c10::NotImplementedError&) {
    return 0;
  }
}

struct Measurement {
  int64_t groups = 0; ///< NCCL groups that this process had made
  int64_t bytes = 0;
};

} // namespace

int64_t library_bytes(const World& world, c10::Device device) {
  if (device.is_cpu()) {
    return 0;
  }
  if (const auto fixed = fixed_library_bytes()) {
    return *fixed;
  }
  // Other processes come and go, and kernels are loaded when they are first
  // used: engines of one process would get different budgets.
  static std::mutex mutex;
  static std::unordered_map<c10::Device, Measurement> measurements;
  const std::lock_guard lock(mutex);
  const int64_t groups = runtime::nccl_groups_made();
  const auto known = measurements.find(device);
  if (known != measurements.end() && known->second.groups == groups) {
    return known->second.bytes;
  }
  const int64_t bytes = measured_library_bytes(world, device);
  measurements[device] = {groups, bytes};
  return bytes;
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/device_memory.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace tessera::runtime {

namespace {

using DeviceLimit = void (*)(c10::Device, std::optional<int64_t>);

DeviceLimit& device_limit() {
  static DeviceLimit registered = nullptr;
  return registered;
}

/// Of the caching allocator of an accelerator.
auto allocated_bytes(c10::Device device) {
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .allocated_bytes[kAll];
}

} // namespace

int64_t live_bytes(c10::Device device) {
  return device.is_cpu() ? cpu_bytes_live() : allocated_bytes(device).current;
}

int64_t peak_bytes(c10::Device device) {
  return device.is_cpu() ? cpu_bytes_peak() : allocated_bytes(device).peak;
}

void reset_peak_bytes(c10::Device device) {
  if (device.is_cpu()) {
    reset_cpu_bytes_peak();
  } else {
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  }
}

void limit_bytes(c10::Device device, std::optional<int64_t> bytes) {
  if (device.is_cpu()) {
    limit_cpu_bytes(bytes);
    return;
  }
  TESSERA_CHECK(
      device_limit() != nullptr,
      "memory of {} cannot be limited: the CUDA plugin is not loaded",
      device.str());
  device_limit()(device, bytes);
}

void register_device_limit(DeviceLimit limit) {
  device_limit() = limit;
}

} // namespace tessera::runtime

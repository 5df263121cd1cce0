// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pins host memory, so that a device copies it without the CPU. The CUDA
// plugin leaves its functions here when it is loaded.

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace tessera {

struct HostPinning {
  /// Pins [data, data + bytes) for all devices.
  /// @return "" or why it was refused.
  std::string (*pin)(void* data, size_t bytes) = nullptr;
  /// Ends it. @param data as given to pin().
  void (*unpin)(void* data) = nullptr;
  /// Where a device is on the bus: "0000:3b:00.0", or "" when not known.
  std::string (*bus_id)(c10::DeviceIndex device) = nullptr;
};

/// Called once, when the plugin is loaded; tests put in others.
void register_host_pinning(const HostPinning& functions);

/// Null members when no plugin has registered.
const HostPinning& host_pinning();

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostPinning` pins host memory, so that a device can copy it without the CPU.
// The CUDA plugin registers its functions here when it is loaded.

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace tessera::runtime {

struct HostPinning {
  /// Pins [data, data + bytes) for all devices.
  /// @return "", or the reason if the system refused.
  std::string (*pin)(void* data, size_t bytes) = nullptr;
  /// Unpins memory. @param data as given to pin().
  void (*unpin)(void* data) = nullptr;
  /// PCI address of a device, "0000:3b:00.0", or "" if unknown.
  std::string (*bus_id)(c10::DeviceIndex device) = nullptr;
};

/// Called once, when the plugin is loaded; tests register others.
void register_host_pinning(const HostPinning& functions);

/// The members are null if no plugin has registered.
const HostPinning& host_pinning();

} // namespace tessera::runtime

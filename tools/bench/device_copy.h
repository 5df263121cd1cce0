// SPDX-License-Identifier: Apache-2.0
#pragma once
// measure_devices() measures the bandwidth between pinned host memory and
// devices.

#include <cstdint>
#include <vector>

namespace tessera::tools {

/// Bytes per second.
struct DeviceBandwidth {
  int index = 0;
  double host_to_device = 0;
  double device_to_host = 0;
};

/// One entry per CUDA device; empty if there is none. Blocks for up to
/// `seconds` in total.
std::vector<DeviceBandwidth> measure_devices(int64_t bytes, double seconds);

} // namespace tessera::tools

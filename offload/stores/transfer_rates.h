// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_transfers()` measures copies between the host and a device.

#include "tessera/offload/stores/host_memory.h"

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::offload {

/// Seconds per byte while both directions are busy, as they are when state is
/// streamed through a device.
struct TransferRates {
  double byte_to_device = 0;
  double byte_to_host = 0;
};

/// Copies `bytes` in each direction several times at once. Blocks for about
/// four such copies.
/// @param memory for the host's side, pinned if its slabs are; 2 * bytes.
/// @param device where 2 * bytes are allocated too.
/// @param bytes above 0.
TransferRates measure_transfers(
    HostMemory& memory,
    c10::Device device,
    int64_t bytes);

} // namespace tessera::offload

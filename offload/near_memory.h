// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the NUMA node that a device hangs on.

#include <c10/core/Device.h>

#include <cstddef>

namespace tessera {

/// Asks for the pages of [data, data + bytes) to come from the NUMA node
/// nearest to `device`. Call it before they are touched. Does nothing for the
/// CPU, on machines with one node, and where the device's place is not known;
/// a refusal only costs time.
void prefer_near_memory(void* data, size_t bytes, c10::Device device);

} // namespace tessera

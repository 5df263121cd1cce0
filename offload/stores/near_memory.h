// SPDX-License-Identifier: Apache-2.0
#pragma once
// `prefer_near_memory()` places memory on the NUMA node of a device.

#include <c10/core/Device.h>

#include <cstddef>

namespace tessera::offload {

/// Asks for the pages of [data, data + bytes) to come from the NUMA node
/// nearest to `device`. Call it before they are first touched. Does nothing for
/// the CPU, on machines with one node, and if the device's node is unknown; a
/// refusal by the system is ignored, since it only costs time.
void prefer_near_memory(void* data, size_t bytes, c10::Device device);

} // namespace tessera::offload

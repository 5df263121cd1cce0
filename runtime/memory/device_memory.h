// SPDX-License-Identifier: Apache-2.0
#pragma once
// What LibTorch's tensors take on a device, the CPU being one.

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera {

/// The most bytes of tensors that were alive at once on `device`, since the
/// start or the last reset. For the CPU 0 without the counter of
/// cpu_memory_counter.h.
int64_t peak_bytes(c10::Device device);

/// Sets the peak to what is alive now.
void reset_peak_bytes(c10::Device device);

} // namespace tessera

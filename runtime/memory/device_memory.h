// SPDX-License-Identifier: Apache-2.0
#pragma once
// `live_bytes()` and `peak_bytes()` return the memory of LibTorch's tensors on
// a device, including the CPU.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

/// Bytes of the live tensors on `device`. For the CPU it is 0 without the
/// counter of cpu_memory_counter.h.
int64_t live_bytes(c10::Device device);

/// Peak of the live tensor bytes on `device` since the start or the last reset.
/// For the CPU it is 0 without the counter of cpu_memory_counter.h.
int64_t peak_bytes(c10::Device device);

/// Sets the peak to the bytes that are live now.
void reset_peak_bytes(c10::Device device);

/// While there is a limit, an allocation of a tensor that would exceed it
/// throws c10::OutOfMemoryError. On CUDA, the limit is of LibTorch's caching
/// allocator, with what it keeps. Nothing: what the device has.
void limit_bytes(c10::Device device, std::optional<int64_t> bytes);

/// limit_bytes() of devices. The CUDA plugin registers its own when it is
/// loaded.
void register_device_limit(
    void (*limit)(c10::Device device, std::optional<int64_t> bytes));

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `process_device_bytes()` and `foreign_device_bytes()` tell the memory of a
// device that this process has from that of other processes.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

/// The device memory of this process, with its context and libraries, as NVML
/// counts it. Nothing without NVML (libnvidia-ml.so.1, which the driver brings,
/// is loaded at the first call), and where it does not know this process, as in
/// a container, which numbers processes otherwise.
/// @param least bytes that this process is known to have; NVML's number for
///   another process with the same process id may be less.
std::optional<int64_t> process_device_bytes(c10::Device device, int64_t least);

/// Notes the memory of the device that is in use before this process uses it.
/// Does nothing if it has a context there already, or without NVML. init()
/// calls it.
void note_foreign_device_bytes(c10::Device device);

/// What note_foreign_device_bytes() has found; 0 if nothing.
int64_t foreign_device_bytes(c10::Device device);

} // namespace tessera::runtime

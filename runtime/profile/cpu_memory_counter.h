// SPDX-License-Identifier: Apache-2.0
#pragma once
// `install_cpu_memory_counter()` counts every byte that LibTorch allocates on
// the CPU: the memory that a run needs, activations included, without the noise
// of the resident set size.

#include <cstdint>
#include <optional>

namespace tessera::runtime {

/// Installs a counting allocator in front of LibTorch's CPU allocator, once per
/// process. Tensors that exist already are not counted: call it first in
/// main().
void install_cpu_memory_counter();

/// Live bytes of counted CPU tensors; 0 without the counter.
int64_t cpu_bytes_live();

/// Maximum of the live bytes since the start or the last reset.
int64_t cpu_bytes_peak();

/// Sets the peak to the bytes that are live now.
void reset_cpu_bytes_peak();

/// While there is a limit, an allocation that would raise the live bytes above
/// it throws c10::OutOfMemoryError: a CPU that has as little memory as a
/// device. Nothing: no limit. Installs the counter.
void limit_cpu_bytes(std::optional<int64_t> bytes);

/// While it exists, what its thread allocates is not counted and not limited:
/// memory of a measurement, which the training does not need.
class UncountedCpuMemory {
 public:
  UncountedCpuMemory();
  UncountedCpuMemory(const UncountedCpuMemory&) = delete;
  UncountedCpuMemory& operator=(const UncountedCpuMemory&) = delete;
  ~UncountedCpuMemory();

 private:
  bool had_;
};

} // namespace tessera::runtime

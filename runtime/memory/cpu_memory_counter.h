// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts every byte that LibTorch allocates on the CPU: what a run really
// needs, activations included, without the noise of the resident set size.

#include <cstdint>

namespace tessera {

/// Puts a counting allocator before LibTorch's CPU allocator, once per process.
/// Tensors made earlier are not counted. Call it first thing in main().
void install_cpu_memory_counter();

/// Bytes of counted CPU tensors alive now; 0 without the counter.
int64_t cpu_bytes_live();

/// The most that were alive since the start or the last reset.
int64_t cpu_bytes_peak();

/// Sets the peak to what is alive now.
void reset_cpu_bytes_peak();

} // namespace tessera

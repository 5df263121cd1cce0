// SPDX-License-Identifier: Apache-2.0
#pragma once
// `keep_freed_cpu_memory()` makes LibTorch's CPU tensors reuse freed memory.

namespace tessera::runtime {

/// Installs an allocator in front of LibTorch's that keeps freed blocks of 64
/// KiB and more for later tensors of any size (see HostHeap) and counts
/// bytes (see cpu_memory_counter.h). Existing tensors are unaffected. `false`
/// stops keeping memory and returns what was kept to the system. init() calls
/// it with InitOptions::keep_freed_memory. Thread-safe.
void keep_freed_cpu_memory(bool keep);

} // namespace tessera::runtime

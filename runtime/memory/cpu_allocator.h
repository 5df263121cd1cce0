// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands behind LibTorch's CPU tensors in a training process.

namespace tessera {

/// Puts an allocator before LibTorch's that keeps freed memory of 64 KiB and
/// more for the next tensor of that size (see HostHeap), and counts bytes
/// (see cpu_memory_counter.h). Tensors made earlier are unaffected. `false`
/// ends the keeping and returns what was kept to the system. init() calls it
/// with InitOptions::keep_freed_memory. Thread-safe.
void keep_freed_cpu_memory(bool keep);

} // namespace tessera

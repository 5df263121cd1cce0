// SPDX-License-Identifier: Apache-2.0
#pragma once
// `library_bytes()` measures the device memory that nothing here allocates.

#include "tessera/runtime/comm/init.h"

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::engine {

/// Returns the bytes of `device` that LibTorch's allocator does not hold: the
/// context and kernels of CUDA, NCCL, cuBLAS, and other processes. Calls cuBLAS
/// first, which takes its memory then; NCCL has taken its own for each
/// communicator that was made. Synchronizes.
/// @return 0 for the CPU, where ranks share a device and so cannot tell whose
///   it is, and where the allocator does not tell.
int64_t library_bytes(const World& world, c10::Device device);

} // namespace tessera::engine

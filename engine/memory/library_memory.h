// SPDX-License-Identifier: Apache-2.0
#pragma once
// `library_bytes()` measures the device memory that nothing here allocates.

#include "tessera/runtime/comm/init.h"

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::engine {

/// Returns the bytes of `device` that this process has beside those of
/// LibTorch's allocator: the context and kernels of CUDA, NCCL, cuBLAS. Calls
/// cuBLAS first, which takes its memory then; NCCL has taken its own for each
/// communicator that was made. Synchronizes.
///
/// NVML tells what the process has. Where it does not, as in most containers,
/// it is what has come into use since init(), by other processes too, and
/// without NVML all that is in use. The result is kept until the process makes
/// another NCCL communicator, so that engines get equal budgets.
/// TESSERA_LIBRARY_BYTES in the environment replaces it.
/// @return 0 for the CPU, where the allocator does not tell, and without NVML's
///   number where ranks share a device.
int64_t library_bytes(const World& world, c10::Device device);

} // namespace tessera::engine

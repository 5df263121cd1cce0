// SPDX-License-Identifier: Apache-2.0
#pragma once
// `checked_kernels()` chooses between a kernel of the CUDA plugin and
// LibTorch's operators.
//
// [Note: the check of CUDA kernels] A build may meet a device, driver or
// compiler that nobody has tried it with. At its first use on a device, each
// kernel solves a small problem (kernel_problems.h) beside LibTorch's operators
// (operator_kernels()). If results differ by more than the problem says, or the
// kernel cannot be launched, a warning names the kernel, the device and the
// difference, and the operators serve in its place to the end of the process.
//
// The check runs on a stream of its own and waits for it alone; it allocates
// some 100 KB, which are free afterwards, and draws from no generator of random
// numbers. While a CUDA graph is recorded, and while memory is full, it is put
// off to the kernel's next use. TESSERA_CHECK_KERNELS=0 turns it off.

#include "tessera/runtime/kernels/device_kernels.h"

#include <cstddef>

namespace tessera::runtime {

/// @param kernel its number, see kernel_problems.h.
/// @return what runs it on the current device: registered_kernels() or
///   operator_kernels(). Waits for the device at the first call. Thread-safe.
const DeviceKernels& checked_kernels(size_t kernel);

} // namespace tessera::runtime

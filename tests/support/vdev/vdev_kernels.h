// SPDX-License-Identifier: Apache-2.0
#pragma once
// The product's kernels on the virtual device, for tests that replace one.

#include "tessera/runtime/kernels/device_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::tests::vdev {

/// Those that install_kernels() registers.
const runtime::DeviceKernels& vdev_kernels();

/// The CPU's kernel of an operator as a command of the current stream.
void run_by_fallback(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace tessera::tests::vdev

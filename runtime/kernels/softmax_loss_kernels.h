// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of [Note: softmax loss] for the CPU, one for each instruction
// set.

#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/softmax_loss_rows.h"

#include <cstdint>

namespace tessera::runtime {

/// Rows [begin, end), independently of all others.
using SoftmaxLossKernel =
    void(const SoftmaxLossRows& all, int64_t begin, int64_t end);

SoftmaxLossKernel softmax_loss_portable;
SoftmaxLossKernel softmax_loss_avx2;
SoftmaxLossKernel softmax_loss_avx512;

/// @throws tessera::Error if `isa` is not available.
SoftmaxLossKernel* softmax_loss_kernel(Isa isa);

} // namespace tessera::runtime

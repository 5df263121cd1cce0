// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_softmax_loss()` launches the kernel of [Note: softmax loss] on CUDA,
// with raw device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/softmax_loss_rows.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// Deterministic; does not synchronize.
/// @param in fewer than 2^31 columns.
/// @return the error of the launch.
cudaError_t launch_softmax_loss(const SoftmaxLossRows& in, cudaStream_t stream);

} // namespace tessera::runtime

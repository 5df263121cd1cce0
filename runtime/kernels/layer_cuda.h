// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_gated()`, `launch_gated_backward()` and `launch_rotary()` launch
// kernels of layers on CUDA, with raw device pointers and a stream instead of
// LibTorch's types.

#include "tessera/runtime/kernels/layer_arguments.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// All work on `stream` and do not synchronize.
/// @return the error of the launch: cudaErrorInvalidValue for float64.
cudaError_t launch_gated(const GatedRows& rows, cudaStream_t stream);
cudaError_t launch_gated_backward(const GatedRows& rows, cudaStream_t stream);
cudaError_t launch_rotary(const RotaryHeads& heads, cudaStream_t stream);

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_add_bias()` launches the kernel that adds a bias on CUDA, with raw
// device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/bias_rows.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// Adds the bias on `stream`; does not synchronize.
/// @return the error of the launch: cudaErrorInvalidValue for float64.
cudaError_t launch_add_bias(const BiasRows& in, cudaStream_t stream);

} // namespace tessera::runtime

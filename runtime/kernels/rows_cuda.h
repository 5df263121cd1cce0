// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_add_bias()`, `launch_column_sums()` and `launch_copy_rows()` launch
// kernels over rows on CUDA, with raw device pointers and a stream instead of
// LibTorch's types.

#include "tessera/runtime/kernels/row_arguments.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// Adds the bias on `stream`; does not synchronize.
/// @return the error of the launch: cudaErrorInvalidValue for float64.
cudaError_t launch_add_bias(const BiasRows& in, cudaStream_t stream);

/// Adds up columns on `stream`; does not synchronize.
/// @return the error of the launch: cudaErrorInvalidValue for float64.
cudaError_t launch_column_sums(const ColumnSums& in, cudaStream_t stream);

/// Copies rows of any alignment on `stream`; does not synchronize.
/// @return the error of the launch.
cudaError_t launch_copy_rows(const RowCopy& in, cudaStream_t stream);

} // namespace tessera::runtime

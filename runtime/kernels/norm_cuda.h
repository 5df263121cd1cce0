// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_norm()` and `launch_norm_backward()` launch LayerNorm, RMSNorm and
// GroupNorm of 16-bit activations with float32 parameters on CUDA, with raw
// device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/low_precision.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::runtime {

/// A matrix whose rows are normalized. All arrays are contiguous.
struct NormRows {
  const void* x; ///< [rows, features] of `type`
  LowPrecision type; ///< not kNone
  const float* weight; ///< [groups, features / spatial]; null: ones
  int64_t rows;
  int64_t features;
  bool centered; ///< else RMSNorm
  int64_t groups = 1; ///< as in NormLayout
  int64_t spatial = 1;
};

struct NormForward {
  NormRows in;
  const float* bias; ///< as in.weight; null: zeros
  float eps;
  void* y; ///< [rows, features] of in.type
  float* mean; ///< [rows], written if in.centered
  float* rstd; ///< [rows]
};

struct NormBackward {
  NormRows in;
  const void* gradient; ///< [rows, features] of in.type, with respect to y
  const float* mean; ///< of NormForward
  const float* rstd;
  void* gradient_x; ///< [rows, features] of in.type; null: not wanted
  /// [parts, groups, features / spatial], each part a sum over some of the
  /// rows: the gradients are the sums of the parts. Null: not wanted.
  float* gradient_weight;
  float* gradient_bias;
  int64_t parts; ///< 1 to 65535
};

/// The number of parts that keeps a device busy.
int64_t norm_backward_parts(const NormRows& in);

/// Both are deterministic and do not synchronize.
/// @return the error of the launches.
cudaError_t launch_norm(const NormForward& norm, cudaStream_t stream);
cudaError_t launch_norm_backward(const NormBackward& norm, cudaStream_t stream);

} // namespace tessera::runtime

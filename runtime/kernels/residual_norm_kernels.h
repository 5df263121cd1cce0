// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of [Note: residual norms] for the CPU, one for each instruction
// set. Plain C++: the per-ISA sources include it.

#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/low_precision.h"

#include <cstdint>

namespace tessera::runtime {

/// Matrices are [rows, features], without gaps.
struct ResidualNormRows {
  LowPrecision type; ///< of matrices; kNone: float32
  int64_t features;
  const void* x;
  const void* branch; ///< null: none
  const uint8_t* mask; ///< of the branch, 0 where it is dropped; null: nowhere
  float branch_scale; ///< of what is not dropped
  const float* weight; ///< [features]; null: ones
  const float* bias; ///< [features]; null: zeros
  float eps;
  bool centered; ///< LayerNorm
  void* sum; ///< written if there is a branch
  void* y;
  float* statistics; ///< [rows, 2]: mean, 0 if not centered, and 1 / deviation
};

struct ResidualNormGradients {
  LowPrecision type; ///< as in ResidualNormRows, and so on
  int64_t features;
  const void* gradient_sum; ///< null: zeros
  const void* gradient_y;
  const void* sum;
  const float* statistics;
  const uint8_t* mask;
  float branch_scale;
  const float* weight;
  bool centered;
  void* gradient_x; ///< also that of the sum
  void* gradient_branch; ///< null: not wanted
};

struct ResidualNormKernel {
  /// Rows [begin, end), independently of all others.
  void (*forward)(const ResidualNormRows& all, int64_t begin, int64_t end);
  /// Likewise; adds these rows' part of the parameters' gradients.
  /// @param weights, biases [features]; null: not wanted.
  void (*backward)(
      const ResidualNormGradients& all,
      int64_t begin,
      int64_t end,
      float* weights,
      float* biases);
};

extern const ResidualNormKernel kResidualNormPortable;
extern const ResidualNormKernel kResidualNormAvx2;
extern const ResidualNormKernel kResidualNormAvx512;

/// @throws tessera::Error if `isa` is not available.
const ResidualNormKernel& residual_norm_kernel(Isa isa);

} // namespace tessera::runtime

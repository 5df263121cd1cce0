// SPDX-License-Identifier: Apache-2.0
#pragma once
// `residual_norm()` adds a branch to a residual stream and normalizes the sum.
//
// [Note: residual norms] A transformer's layer adds what a half of it has
// computed, after dropout, to what went in, and normalizes the sum for the next
// half. By LibTorch's operators that are five passes over the activations
// forward and as many backward, and RMSNorm, which is composed of others on the
// CPU, takes ten more. Here forward reads both addends once and writes the sum
// and its norm; backward adds the gradient that passes by the norm to the
// norm's own, with the parameters' sums in the same pass. What it keeps is the
// sum, two float32 numbers a row and, with dropout, a byte an element. Sums
// over rows are by blocks that do not depend on the number of threads.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

struct ResidualNormOptions {
  double eps = 1e-5;
  bool centered = true; ///< LayerNorm; false: RMSNorm
  double weight_offset = 0; ///< added to the weight
  /// Factor of the branch, of what is not dropped.
  double branch_scale = 1;
};

struct ResidualNorm {
  at::Tensor sum; ///< x, if there is no branch
  at::Tensor normed;
};

/// Whether residual_norm() takes x: on the CPU, float32 or 16 bits.
bool takes_residual_norm(const at::Tensor& x);

/// sum = x + branch_scale branch, without what is dropped, and its norm over
/// the last dimension, [Note: residual norms]. Differentiable, twice too.
/// Deterministic, for any number of threads.
/// @param x [..., features] as takes_residual_norm() says.
/// @param branch as x, or undefined: none.
/// @param mask bool as branch, false where it is dropped; undefined: nowhere.
/// @param weight, bias [features] of a floating-point dtype, or undefined.
/// @return in x's dtype and shape.
/// @throws tessera::Error on other dtypes, shapes or devices.
ResidualNorm residual_norm(
    const at::Tensor& x,
    const at::Tensor& branch,
    const at::Tensor& mask,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const ResidualNormOptions& options);

} // namespace tessera::runtime

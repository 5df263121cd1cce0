// SPDX-License-Identifier: Apache-2.0
#pragma once
// few_rows_linear() multiplies a few rows by a weight matrix on the CPU, as
// models do that generate token by token.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

/// Above it a matrix product of the library is as fast.
inline constexpr int64_t kMostFewRows = 32;

/// Whether few_rows_linear() takes these: without gradients, plain dense
/// float32 CPU tensors (none that an engine has sharded), few rows, and a
/// processor with AVX2 or AVX-512. The library of LibTorch reads such a weight
/// at half of what memory gives, and packs it anew for each product of more
/// than one row.
/// @param bias may be undefined.
bool takes_few_rows(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// x W^T + bias, as at::linear() up to rounding. A row of the result does not
/// depend on how many rows there are, nor on the number of threads.
/// @param x [..., k], @param weight [n, k], @param bias [n] or undefined.
at::Tensor few_rows_linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// The operands of the kernels, row-major.
struct FewRows {
  const float* x; ///< [rows, k]
  int64_t rows;
  int64_t k;
  const float* weight; ///< [n, k]
  const float* bias; ///< [n] or null
  float* y; ///< [rows, n]
  int64_t n;
};

/// Columns [begin, end) of the result.
void few_rows_avx2(const FewRows& all, int64_t begin, int64_t end);
void few_rows_avx512(const FewRows& all, int64_t begin, int64_t end);

} // namespace tessera::runtime

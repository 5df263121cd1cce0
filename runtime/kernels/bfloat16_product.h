// SPDX-License-Identifier: Apache-2.0
#pragma once
// `bfloat16_product()` multiplies float32 matrices on the CPU by instructions
// for bfloat16: operands are rounded, sums are float32.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

/// Whether this processor and this build have AVX512-BF16.
bool has_bfloat16_products();

/// Writes a b + bias, or adds a b to what `out` has. Blocks.
/// @param a [m, k], @param b [k, n], @param out [m, n]: dense float32 CPU
///   tensors; rows of `out` are contiguous, and it shares no memory with the
///   others.
/// @param bias contiguous [n], or undefined; not with `adds`.
/// Only where has_bfloat16_products().
void bfloat16_product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& bias,
    bool adds,
    const at::Tensor& out);

} // namespace tessera::runtime

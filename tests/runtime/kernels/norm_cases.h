// SPDX-License-Identifier: Apache-2.0
#pragma once
// LayerNorm and RMSNorm in float64, and how far 16-bit results may be from it.

#include <torch/torch.h>

#include <vector>

namespace tessera::runtime::norm_cases {

/// Normalizes the last dimension.
inline at::Tensor reference_norm(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps,
    bool centered) {
  at::Tensor values = x;
  if (centered) {
    values = values - values.mean({-1}, /*keepdim=*/true);
  }
  const at::Tensor squares = values.square().mean({-1}, /*keepdim=*/true);
  at::Tensor y = values / (squares + eps).sqrt();
  y = weight.defined() ? y * weight : y;
  return bias.defined() ? y + bias : y;
}

/// A leaf of the same values in float64; undefined stays undefined.
inline at::Tensor wide_leaf(const at::Tensor& t) {
  return t.defined() ? t.detach().to(at::kDouble).requires_grad_()
                     : at::Tensor();
}

/// One rounding of the result to its dtype, plus what float32 computes less
/// precisely than float64, relative to the largest number.
inline bool is_rounded(const at::Tensor& found, const at::Tensor& exact) {
  const double unit = found.scalar_type() == at::kBFloat16 ? 0x1p-8
                      : found.scalar_type() == at::kHalf   ? 0x1p-11
                                                           : 0x1p-24;
  const at::Tensor bound =
      unit * exact.abs() + 4e-6 * exact.abs().max().clamp_min(0.01);
  return found.sizes() == exact.sizes() &&
         ((found.to(at::kDouble) - exact).abs() <= bound).all().item<bool>();
}

} // namespace tessera::runtime::norm_cases

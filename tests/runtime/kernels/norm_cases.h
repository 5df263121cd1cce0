// SPDX-License-Identifier: Apache-2.0
#pragma once
// LayerNorm and RMSNorm in float64, and how far 16-bit results may be from it.

#include "tessera/runtime/kernels/mixed_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>

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

struct NormCase {
  at::ScalarType dtype = at::kBFloat16;
  bool is_layer_norm = true;
  int64_t rows = 0;
  int64_t features = 0;
  bool has_weight = true;
  bool has_bias = true; ///< only for LayerNorm
  at::Device device = at::kCPU;
};

/// Results and gradients of mixed_layer_norm() and mixed_rms_norm().
inline void check_mixed_norm(const NormCase& which) {
  constexpr double kEps = 1e-5;
  torch::manual_seed(3);
  const auto leaf = [&](const at::Tensor& t) {
    return t.to(which.device).requires_grad_();
  };
  const at::Tensor x =
      leaf((at::randn({which.rows, which.features}) * 2 + 1).to(which.dtype));
  const at::Tensor weight =
      which.has_weight ? leaf(at::rand({which.features}) + 0.5) : at::Tensor();
  const at::Tensor bias =
      which.has_bias ? leaf(at::randn({which.features})) : at::Tensor();
  const at::Tensor y =
      which.is_layer_norm
          ? mixed_layer_norm(x, {which.features}, weight, bias, kEps)
          : mixed_rms_norm(x, {which.features}, weight, kEps);
  EXPECT_EQ(y.scalar_type(), which.dtype);
  const at::Tensor gradient =
      at::randn(y.sizes()).to(which.dtype).to(which.device);
  const at::Tensor wide_x = wide_leaf(x);
  const at::Tensor wide_weight = wide_leaf(weight);
  const at::Tensor wide_bias = wide_leaf(bias);
  const at::Tensor exact =
      reference_norm(wide_x, wide_weight, wide_bias, kEps, which.is_layer_norm);
  y.backward(gradient);
  exact.backward(gradient.to(at::kDouble));
  const auto where = [&] {
    return ::testing::Message() << which.rows << " x " << which.features;
  };
  EXPECT_TRUE(is_rounded(y, exact)) << where();
  EXPECT_TRUE(is_rounded(x.grad(), wide_x.grad())) << where();
  EXPECT_EQ(x.grad().scalar_type(), which.dtype);
  for (const auto& [own, reference] :
       {std::pair{weight, wide_weight}, {bias, wide_bias}}) {
    if (own.defined()) {
      EXPECT_EQ(own.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(is_rounded(own.grad(), reference.grad())) << where();
    }
  }
}

} // namespace tessera::runtime::norm_cases

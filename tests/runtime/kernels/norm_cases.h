// SPDX-License-Identifier: Apache-2.0
#pragma once
// LayerNorm, RMSNorm and GroupNorm in float64, and how far 16-bit results may
// be from it.

#include "tessera/runtime/kernels/mixed_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
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

struct NormCase {
  at::ScalarType dtype = at::kBFloat16;
  bool is_layer_norm = true;
  int64_t rows = 0;
  int64_t features = 0;
  bool has_weight = true;
  bool has_bias = true; ///< only for LayerNorm
  at::Device device = at::kCPU;
};

/// Results and gradients of norm(x, weight, bias) against those of
/// reference(x, weight, bias) in float64.
template <typename Norm, typename Reference>
void check_against(
    const Norm& norm,
    const Reference& reference,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const at::Tensor y = norm(x, weight, bias);
  EXPECT_EQ(y.scalar_type(), x.scalar_type());
  const at::Tensor gradient =
      at::randn(y.sizes()).to(x.scalar_type()).to(x.device());
  const at::Tensor wide_x = wide_leaf(x);
  const at::Tensor wide_weight = wide_leaf(weight);
  const at::Tensor wide_bias = wide_leaf(bias);
  const at::Tensor exact = reference(wide_x, wide_weight, wide_bias);
  y.backward(gradient);
  exact.backward(gradient.to(at::kDouble));
  EXPECT_TRUE(is_rounded(y, exact)) << x.sizes();
  EXPECT_TRUE(is_rounded(x.grad(), wide_x.grad())) << x.sizes();
  EXPECT_EQ(x.grad().scalar_type(), x.scalar_type());
  for (const auto& [local, wide] :
       {std::pair{weight, wide_weight}, {bias, wide_bias}}) {
    if (local.defined()) {
      EXPECT_EQ(local.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(is_rounded(local.grad(), wide.grad())) << x.sizes();
    }
  }
}

/// mixed_layer_norm() and mixed_rms_norm().
inline void check_mixed_norm(const NormCase& which) {
  constexpr double kEps = 1e-5;
  torch::manual_seed(3);
  const auto leaf = [&](const at::Tensor& t) {
    return t.to(which.device).requires_grad_();
  };
  check_against(
      [&](const at::Tensor& x,
          const at::Tensor& weight,
          const at::Tensor& bias) {
        return which.is_layer_norm
                   ? mixed_layer_norm(x, {which.features}, weight, bias, kEps)
                   : mixed_rms_norm(x, {which.features}, weight, kEps);
      },
      [&](const at::Tensor& x,
          const at::Tensor& weight,
          const at::Tensor& bias) {
        return reference_norm(x, weight, bias, kEps, which.is_layer_norm);
      },
      leaf((at::randn({which.rows, which.features}) * 2 + 1).to(which.dtype)),
      which.has_weight ? leaf(at::rand({which.features}) + 0.5) : at::Tensor(),
      which.has_bias ? leaf(at::randn({which.features})) : at::Tensor());
}

struct GroupNormCase {
  std::vector<int64_t> sizes; ///< samples, channels, ...
  int64_t groups = 1;
};

/// mixed_group_norm(), with parameters and without.
inline void check_mixed_group_norm(
    const GroupNormCase& which,
    at::ScalarType dtype,
    at::Device device = at::kCPU) {
  constexpr double kEps = 1e-5;
  torch::manual_seed(3);
  const auto leaf = [&](const at::Tensor& t) {
    return t.to(device).requires_grad_();
  };
  const int64_t channels = which.sizes[1];
  for (const bool has_parameters : {true, false}) {
    check_against(
        [&](const at::Tensor& x,
            const at::Tensor& weight,
            const at::Tensor& bias) {
          return mixed_group_norm(x, which.groups, weight, bias, kEps);
        },
        [&](const at::Tensor& x,
            const at::Tensor& weight,
            const at::Tensor& bias) {
          return at::group_norm(x, which.groups, weight, bias, kEps);
        },
        leaf((at::randn(which.sizes) * 2 + 1).to(dtype)),
        has_parameters ? leaf(at::rand({channels}) + 0.5) : at::Tensor(),
        has_parameters ? leaf(at::randn({channels})) : at::Tensor());
  }
}

/// Groups of one channel, of all, of odd sizes, and without neighbours that
/// share a parameter: short ones and long ones.
inline const std::vector<GroupNormCase>& group_norm_cases() {
  static const std::vector<GroupNormCase> all = {
      {{3, 6, 5, 7}, 2},
      {{2, 12, 4, 4}, 4},
      {{4, 9, 3}, 9},
      {{5, 10, 21}, 1},
      {{70, 8}, 2},
      {{9, 48}, 2},
      {{3, 528}, 2},
      {{1, 4, 1500}, 2}};
  return all;
}

} // namespace tessera::runtime::norm_cases

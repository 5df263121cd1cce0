// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of matrices whose rows are not aligned, against float64.

#include "tessera/runtime/kernels/fast_operators.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <vector>

namespace tessera::tests::fast_operators_cases {

/// Sums that are rounded to 16 bits, and, as LibTorch lets CUDA, may be added
/// up of parts that are rounded as well.
inline void expect_product(const at::Tensor& found, const at::Tensor& exact) {
  const double unit = found.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
  const at::Tensor apart = found.to(at::kDouble) - exact;
  EXPECT_LE((apart.norm() / exact.norm()).item<double>(), 4 * unit);
  EXPECT_LE((apart.abs().max() / exact.abs().max()).item<double>(), 8 * unit);
}

/// [rows, columns] whose first element is `offset` elements behind aligned
/// memory, or the transposed of such a matrix.
inline at::Tensor matrix(
    int64_t rows,
    int64_t columns,
    const at::TensorOptions& options,
    bool is_transposed = false,
    int64_t offset = 0) {
  if (is_transposed) {
    return matrix(columns, rows, options, false, offset).t();
  }
  return at::empty({rows * columns + offset}, options)
      .narrow(0, offset, rows * columns)
      .view({rows, columns})
      .copy_(at::randn({rows, columns}, options));
}

/// m, k and n of which some are odd, in all orientations; mm, addmm and what
/// autograd makes of them.
/// @param half_shapes how many of the shapes in float16, which LibTorch
///   multiplies slowly on the CPU.
inline void check_products(c10::Device device, size_t half_shapes) {
  torch::manual_seed(3);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto options = at::TensorOptions(device).dtype(dtype);
    std::vector<std::array<int64_t, 3>> shapes{
        {515, 1025, 2049},
        {1024, 1024, 1025},
        {1025, 1031, 1024},
        {2050, 512, 1026}};
    if (dtype == at::kHalf) {
      shapes.resize(half_shapes);
    }
    for (const auto& [m, k, n] : shapes) {
      for (const bool turns_a : {false, true}) {
        for (const bool turns_b : {false, true}) {
          const at::Tensor a = matrix(m, k, options, turns_a);
          const at::Tensor b = matrix(k, n, options, turns_b, 1);
          const at::Tensor bias = at::randn({n}, options);
          const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
          const at::Tensor product = a.mm(b);
          EXPECT_TRUE(product.is_contiguous());
          expect_product(product, exact);
          const at::Tensor sum = at::addmm(bias, a, b);
          EXPECT_TRUE(sum.is_contiguous());
          expect_product(sum, exact + bias.to(at::kDouble));
          expect_product(
              at::addmm(bias, a, b, 2, 0.5),
              0.5 * exact + 2 * bias.to(at::kDouble));
        }
      }
    }
    // The head of a language model.
    const at::Tensor x = matrix(1024, 512, options).requires_grad_();
    const at::Tensor weight = matrix(2051, 512, options).requires_grad_();
    const at::Tensor gradient = at::randn({2, 512, 2051}, options);
    at::linear(x.view({2, 512, 512}), weight).backward(gradient);
    const at::Tensor wide = gradient.view({1024, 2051}).to(at::kDouble);
    expect_product(x.grad(), wide.mm(weight.detach().to(at::kDouble)));
    expect_product(weight.grad(), wide.t().mm(x.detach().to(at::kDouble)));
  }
}

} // namespace tessera::tests::fast_operators_cases

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of matrices whose rows are not aligned, against float64; sums over
// rows, against float64 too, and copies of parts of rows.

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

/// Sums over all dimensions but the last, as of a bias's gradient, and others.
/// @param rows of the longest one.
inline void check_sums(c10::Device device, int64_t rows) {
  torch::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double unit = dtype == at::kFloat  ? 0x1p-21
                        : dtype == at::kHalf ? 0x1p-11
                                             : 0x1p-8;
    const auto on_host = at::TensorOptions().dtype(dtype);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {rows, 64},
             {rows, 2056},
             {3, 1031, 257},
             {70, 1037},
             {2, 2, 9, 4096}}) {
      for (const int64_t offset : {0, 1}) {
        const at::Tensor host = at::randn(sizes, on_host) + 0.1;
        const at::Tensor x =
            at::empty({host.numel() + offset}, on_host.device(device))
                .narrow(0, offset, host.numel())
                .view(sizes)
                .copy_(host);
        std::vector<int64_t> dims;
        for (int64_t dim = x.dim() - 2; dim >= 0; --dim) {
          dims.push_back(dim);
        }
        const at::Tensor exact = host.to(at::kDouble).sum(dims);
        for (const bool keepdim : {false, true}) {
          const at::Tensor sums = x.sum(dims, keepdim);
          EXPECT_EQ(sums.scalar_type(), dtype);
          EXPECT_EQ(sums.dim(), keepdim ? x.dim() : 1);
          EXPECT_TRUE(at::allclose(
              sums.cpu().to(at::kDouble).flatten(), exact, unit, 1e-3))
              << dtype << ", " << sizes << ", " << offset;
        }
        // Not the kernel's.
        dims.back() = x.dim() - 1;
        EXPECT_TRUE(at::allclose(
            x.sum(dims).cpu().to(at::kDouble),
            host.to(at::kDouble).sum(dims),
            unit,
            1e-1));
        EXPECT_EQ(x.sum({0}, false, at::kDouble).scalar_type(), at::kDouble);
      }
    }
  }
  EXPECT_EQ(
      at::ones({300, 300}, at::TensorOptions(device).dtype(at::kInt))
          .sum({0})
          .scalar_type(),
      at::kLong);
}

/// What autograd copies of logits of all tokens but the last, and other parts.
inline void check_copies(c10::Device device) {
  torch::manual_seed(6);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto options = at::TensorOptions().dtype(dtype);
    for (const int64_t columns : {4103, 1032}) {
      const at::Tensor host = at::randn({2, 258, columns}, options);
      const at::Tensor x = host.to(device);
      const auto expect_copied = [&](const at::Tensor& found,
                                     const at::Tensor& expected) {
        EXPECT_TRUE(found.cpu().equal(expected)) << dtype << ", " << columns;
      };
      expect_copied(
          x.narrow(1, 0, 257).flatten(0, 1),
          host.narrow(1, 0, 257).flatten(0, 1));
      expect_copied(
          x.narrow(1, 1, 257).narrow(2, 3, 1024).contiguous(),
          host.narrow(1, 1, 257).narrow(2, 3, 1024).contiguous());
      expect_copied(
          x.transpose(0, 1).contiguous(), host.transpose(0, 1).contiguous());
      const at::Tensor wide = at::zeros({2, 258, columns}, x.options());
      wide.narrow(1, 0, 257).copy_(x.narrow(1, 1, 257));
      expect_copied(wide.narrow(1, 0, 257), host.narrow(1, 1, 257));
      EXPECT_EQ(wide.select(1, 257).abs().max().item<float>(), 0);
      // Three dimensions before the rows, that do not become two.
      expect_copied(
          x.view({2, 2, 129, columns}).permute({2, 0, 1, 3}).contiguous(),
          host.view({2, 2, 129, columns}).permute({2, 0, 1, 3}).contiguous());
      // LibTorch's: other types, rows that are read more than once.
      expect_copied(
          x.narrow(1, 0, 257).to(at::kFloat),
          host.narrow(1, 0, 257).to(at::kFloat));
      expect_copied(
          x.select(1, 0).unsqueeze(1).expand({2, 258, columns}).contiguous(),
          host.select(1, 0)
              .unsqueeze(1)
              .expand({2, 258, columns})
              .contiguous());
    }
  }
}

} // namespace tessera::tests::fast_operators_cases

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `padding_of()` says which matrices of a product are copied so that it is
// fast.
//
// [Note: aligned products] The fast kernels of cuBLAS need matrices of 16 bits
// whose rows begin at multiples of 16 bytes, and sizes that are multiples of 8:
// those that are added up, and the rows of the product. With another size, such
// as a vocabulary of 50,257, its products take five to six times as long
// (docs/measurements.md); aligned rows alone do not help. So mm and addmm
// multiply by way of copies that are padded, where that saves more than copying
// takes. What is added up is padded with zeros. The numbers are as exact, in
// another order of sums.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// How a product is computed: a [m, k] times b [k, n], of which some are
/// copies.
struct ProductPadding {
  bool a = false;
  bool b = false;
  bool product = false;
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;

  bool is_any() const {
    return a || b || product;
  }
};

/// Without copies for operands that are aligned, or cannot be multiplied.
ProductPadding padding_of(const at::Tensor& a, const at::Tensor& b);

/// [rows, columns], stored in the order of `like`: by rows or by columns.
at::Tensor matrix_in_order_of(
    const at::Tensor& like,
    int64_t rows,
    int64_t columns);

/// Memory as of the copies, for dry runs.
std::vector<at::Tensor> padded_memory(const at::Tensor& a, const at::Tensor& b);

/// Whether dry runs for CUDA count the copies; true before the first call.
bool plans_padded_products();
void plan_padded_products(bool plan);

} // namespace tessera::runtime

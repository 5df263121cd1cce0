// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/product_padding.h"

#include "tessera/runtime/core/round_up.h"

#include <ATen/ops/empty.h>

#include <atomic>

namespace tessera::runtime {

namespace {

// Of 16 bytes.
constexpr int64_t kAlignedElements = 8;
// With fewer multiplications than this, a product takes some microseconds in
// any case.
constexpr int64_t kLeastProductWork = int64_t{1} << 30;
// Each element of a copy has to serve for so many multiplications: with 150,
// copying takes as long as it saves on an H200.
constexpr int64_t kLeastUses = 256;

bool is_16bit_matrix(const at::Tensor& x) {
  return x.dim() == 2 && c10::isReducedFloatingType(x.scalar_type()) &&
         x.layout() == at::kStrided;
}

/// Whether the rows of a matrix follow each other, or those of its transposed.
bool has_rows(const at::Tensor& x) {
  return x.stride(0) == 1 || x.stride(1) == 1;
}

/// Of one with rows.
bool is_aligned(const at::Tensor& x) {
  const int64_t distance = x.stride(1) == 1 ? x.stride(0) : x.stride(1);
  constexpr uintptr_t kBytes = 2 * kAlignedElements;
  return distance % kAlignedElements == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kBytes == 0;
}

std::atomic<bool> is_planned{true};

} // namespace

ProductPadding padding_of(const at::Tensor& a, const at::Tensor& b) {
  if (!is_16bit_matrix(a) || !is_16bit_matrix(b) ||
      a.scalar_type() != b.scalar_type() || a.size(1) != b.size(0)) {
    return {};
  }
  const int64_t m = a.size(0);
  const int64_t k = a.size(1);
  const int64_t n = b.size(1);
  if (m * k * n < kLeastProductWork || !has_rows(a) || !has_rows(b)) {
    return {};
  }
  ProductPadding padding{
      .m = m,
      .k = round_up(k, kAlignedElements),
      .n = round_up(n, kAlignedElements)};
  padding.a = padding.k > k || !is_aligned(a);
  padding.b = padding.k > k || padding.n > n || !is_aligned(b);
  padding.product = padding.n > n;
  if ((padding.a && n < kLeastUses) || (padding.b && m < kLeastUses) ||
      (padding.product && k < kLeastUses)) {
    return {};
  }
  if (padding.a && a.stride(1) != 1) { // the copy's rows are of m
    padding.m = round_up(m, kAlignedElements);
  }
  return padding;
}

at::Tensor matrix_in_order_of(
    const at::Tensor& like,
    int64_t rows,
    int64_t columns) {
  return like.stride(1) == 1 ? at::empty({rows, columns}, like.options())
                             : at::empty({columns, rows}, like.options()).t();
}

std::vector<at::Tensor> padded_memory(
    const at::Tensor& a,
    const at::Tensor& b) {
  const ProductPadding padding = padding_of(a, b);
  std::vector<at::Tensor> memory;
  if (padding.a) {
    memory.push_back(matrix_in_order_of(a, padding.m, padding.k));
  }
  if (padding.b) {
    memory.push_back(matrix_in_order_of(b, padding.k, padding.n));
  }
  if (padding.product) {
    memory.push_back(at::empty({padding.m, padding.n}, a.options()));
  }
  return memory;
}

bool plans_padded_products() {
  return is_planned;
}

void plan_padded_products(bool plan) {
  is_planned = plan;
}

} // namespace tessera::runtime

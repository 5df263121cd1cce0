// SPDX-License-Identifier: Apache-2.0
#pragma once
// `use_fast_operators()` takes the place of LibTorch's kernels where others are
// faster.
//
// [Note: aligned products] The fast kernels of cuBLAS need matrices of 16 bits
// whose rows begin at multiples of 16 bytes, and sizes that are multiples of 8:
// those that are added up, and the rows of the product. With another size, such
// as a vocabulary of 50,257, its products take five to six times as long
// (docs/measurements.md); aligned rows alone do not help. So mm and addmm
// multiply by way of copies that are padded, where that saves more than copying
// takes. What is added up is padded with zeros. The numbers are as exact, in
// another order of sums.
//
// [Note: added biases] torch::nn::Linear adds its bias to the product in place.
// LibTorch's kernel for that moves a few bytes an instruction, and takes three
// times as long as reading and writing would; ours has the same bits.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// Replaces the kernels of mm, addmm and add_ for tensors of the device, or
/// puts LibTorch's back. In the whole process. Idempotent. Do not call it while
/// operators run.
/// @param device an accelerator whose kernels LibTorch has loaded.
void use_fast_operators(bool use, c10::DeviceType device);

/// What the last call said, or, before the first, what init() says: true.
bool uses_fast_operators();

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

/// Memory as of the copies, for dry runs.
std::vector<at::Tensor> padded_memory(const at::Tensor& a, const at::Tensor& b);

} // namespace tessera::runtime

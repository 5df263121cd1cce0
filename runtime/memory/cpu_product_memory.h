// SPDX-License-Identifier: Apache-2.0
#pragma once
// `cpu_product_memory()` is what products of matrices on the CPU take beside
// their results, for dry runs.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// Where the product of two matrices goes.
enum class ProductUse : uint8_t {
  kNew, ///< a new tensor
  kWritten, ///< one that is there, as by mm_out()
  kAdded, ///< one to which it is added, as by addmm_()
};

/// Tensors as those that a [m, k] times b [k, n] takes, dense or not.
using CpuProductMemory = std::vector<at::Tensor>(
    const at::Tensor& a,
    const at::Tensor& b,
    ProductUse use);

/// Set by what multiplies (kernels/cpu_matmul.h).
/// @param memory null: nothing.
void plan_cpu_products(CpuProductMemory* memory);

std::vector<at::Tensor> cpu_product_memory(
    const at::Tensor& a,
    const at::Tensor& b,
    ProductUse use);

} // namespace tessera::runtime

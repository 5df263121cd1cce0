// SPDX-License-Identifier: Apache-2.0
#pragma once
// `principal_part()` and `add_product()` initialize adapters by PiSSA.

#include "tessera/zoo/layers/linear.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// Matrices of rank r whose product, times a factor, is the part of a weight
/// with its r largest singular values (PiSSA, arXiv:2404.02948): both have the
/// roots of these values, so that neither is larger than the other.
struct PrincipalPart {
  at::Tensor a; ///< [r, in]
  at::Tensor b; ///< [out, r]
};

/// @param layers whose weights, one below another, are the weight.
/// @throws tessera::Error if layers are divided over tensor-parallel ranks, or
///     if r is larger than a side of the weight.
void check_principal_part(const std::vector<LinearLayer*>& layers, int64_t r);

/// Decomposes a weight, in float32; of the weight's dtype and on its device.
/// Reads lazy weights, one after another. In a dry run values are random.
/// @param layers whose weights, one below another, are the weight.
/// @param scaling the factor of the product.
/// @throws tessera::Error as check_principal_part().
PrincipalPart principal_part(
    const std::vector<LinearLayer*>& layers,
    int64_t r,
    double scaling);

/// Adds `factor` B A to a weight, or, if it is lazy, to the value that it will
/// get.
/// @param a [r, in], b [out, r]: kept if the weight is lazy.
void add_product(
    const at::Tensor& weight,
    const at::Tensor& a,
    const at::Tensor& b,
    double factor);

} // namespace tessera::zoo

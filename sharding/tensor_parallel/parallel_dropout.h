// SPDX-License-Identifier: Apache-2.0
#pragma once
// `dropout_part()` applies dropout to an activation of which each rank has a
// part.

#include "tessera/sharding/tensor_parallel/tensor_parallel.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::sharding {

/// Returns whether a rank draws masks of whole activations for tensors on
/// `device`.
bool draws_full_masks(const TensorParallel& tp, at::Device device);

/// Applies dropout, in training mode. With DropoutMasks::kOfWhole the ranks'
/// default generators must be in the same state, and still are afterwards; on
/// the CPU, the ranks drop what torch::dropout drops of the whole. Not
/// collective.
/// @param part of a tensor whose dimension `dim` is divided by `split`, such as
///   features, heads or sequences.
at::Tensor dropout_part(
    const at::Tensor& part,
    double probability,
    int64_t dim,
    const DimSplit& split,
    const TensorParallel& tp);

} // namespace tessera::sharding

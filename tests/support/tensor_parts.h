// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tensor-parallel ranks have of a whole parameter, and the whole of it.

#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>

namespace tessera::tests {

/// @param spec of the parameter.
/// @param rank in the tensor-parallel group.
inline at::Tensor local_part(
    const at::Tensor& full,
    const TensorSpec& spec,
    int rank) {
  const auto dim = spec.divided_dim(kTensorAxis);
  if (!dim) {
    return full;
  }
  const sharding::DimSplit split = spec.split(kTensorAxis);
  return full.narrow(*dim, split.begin(rank), split.length(rank));
}

/// The whole of a parameter, or of a tensor that is divided like it; `value`
/// itself if the tensor-parallel ranks do not divide it. Collective.
inline at::Tensor gather_full(
    const at::Tensor& value,
    const TensorSpec& spec,
    Communicator& group) {
  const auto dim = spec.divided_dim(kTensorAxis);
  return dim ? sharding::gather_parts(
                   value, *dim, spec.split(kTensorAxis), group)
             : value;
}

} // namespace tessera::tests

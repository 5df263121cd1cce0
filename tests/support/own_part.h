// SPDX-License-Identifier: Apache-2.0
#pragma once
// own_part(): what a tensor-parallel rank has of a whole parameter.

#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>

namespace tessera::tests {

/// @param spec of the parameter.
/// @param rank in the tensor-parallel group.
inline at::Tensor own_part(
    const at::Tensor& whole,
    const TensorSpec& spec,
    int rank) {
  const auto dim = spec.divided_dim(kTensorAxis);
  if (!dim) {
    return whole;
  }
  const sharding::DimSplit split = spec.split(kTensorAxis);
  return whole.narrow(*dim, split.begin(rank), split.length(rank));
}

} // namespace tessera::tests

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `apply_linear()` makes a linear map that autograd does not know
// differentiable.

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::sharding {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// Returns map(input); the gradient of the input is `transpose` of the gradient
/// of the result. Differentiable any number of times.
/// @param map, transpose must return new tensors or their argument.
at::Tensor apply_linear(
    const at::Tensor& input,
    TensorMap map,
    TensorMap transpose);

} // namespace tessera::sharding

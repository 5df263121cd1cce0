// SPDX-License-Identifier: Apache-2.0
#pragma once
// Linear maps that autograd does not know.

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// map(input), whose gradient is `transpose` of the result's. It can be
/// differentiated as often as one likes.
/// @param map, transpose return tensors of their own, or their argument.
at::Tensor apply_linear(
    const at::Tensor& input,
    TensorMap map,
    TensorMap transpose);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `specs_in()` tells how the tensor-parallel ranks divide the parameters of a
// module.

#include "tessera/sharding/tensor_parallel/tensor_parallel.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace tessera {

/// Returns how the layers of `module` are divided; null if none is.
std::shared_ptr<const TensorParallel> tensor_parallel_of(
    const torch::nn::Module& module);

/// Specs of parameters and buffers.
using TensorSpecs = std::unordered_map<const c10::TensorImpl*, TensorSpec>;

/// Returns the specs of all parameters and registered buffers in `module`,
/// including its own. Those that are not divided ([Note: divided weights]) are
/// whole on every rank.
TensorSpecs specs_in(const torch::nn::Module& module);

/// Returns the spec of a tensor; for one that is not in `specs`, that of a
/// tensor that is whole on every rank.
TensorSpec spec_of(const at::Tensor& tensor, const TensorSpecs& specs);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `layer_plan()` says how tensor-parallel ranks divide the layers of a model.

#include "tessera/sharding/tensor_parallel/tensor_plan.h"

namespace tessera::zoo {

/// Returns the plan of what `module` is made of: Linear layers in the dimension
/// and the units that they were made with, tables of tokens by rows. Layers for
/// which there are too many ranks are divided more finely or left whole, as
/// LinearOptions::fine_unit says. Layers that were made without a group stay
/// whole.
/// @param ranks of the tensor-parallel group.
TensorPlan layer_plan(const torch::nn::Module& module, int ranks);

} // namespace tessera::zoo

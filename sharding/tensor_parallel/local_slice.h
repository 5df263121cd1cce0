// SPDX-License-Identifier: Apache-2.0
#pragma once
// `local_slice()` takes a rank's partition of an existing parameter.

#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>

namespace tessera::sharding {

/// Returns this rank's partition, in memory of its own. If the parameter is
/// deferred, so is the partition, which gets the same values as in the whole
/// parameter.
/// @param spec of the parameter.
at::Tensor local_slice(const at::Tensor& full, const TensorSpec& spec);

} // namespace tessera::sharding

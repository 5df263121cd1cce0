// SPDX-License-Identifier: Apache-2.0
#pragma once
// `own_slice()` takes a rank's partition of an existing parameter.

#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/core/Tensor.h>

namespace tessera::sharding {

/// Returns the partition of rank `rank`, in memory of its own. If the parameter
/// is deferred, so is the partition, which gets the same values as in the whole
/// parameter.
at::Tensor own_slice(
    const at::Tensor& whole,
    const ParameterPart& part,
    int rank);

} // namespace tessera::sharding

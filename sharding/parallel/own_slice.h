// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's part of a parameter that exists.

#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// Rank `rank`'s part, in memory of its own. Of a deferred parameter the part
/// is deferred, and gets the numbers that the whole would have there.
at::Tensor own_slice(
    const at::Tensor& whole,
    const ParameterPart& part,
    int rank);

} // namespace tessera

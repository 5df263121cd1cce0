// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_length()` checks the length of a tensor that a collective operation
// takes.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::sharding {

/// @param function name of the caller, for the message.
/// @throws tessera::Error unless dimension `dim` has `expected` elements.
void check_length(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t expected,
    const char* function,
    const Communicator& group);

/// @throws tessera::Error unless the length of dimension `dim` is a positive
///   multiple of the number of ranks.
void check_divides(
    const at::Tensor& tensor,
    int64_t dim,
    const char* function,
    const Communicator& group);

} // namespace tessera::sharding

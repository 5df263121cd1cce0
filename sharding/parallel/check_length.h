// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a tensor is as long as its place in a group says.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// @param function names the caller in the message.
/// @throws tessera::Error unless dimension `dim` has `expected` elements.
void check_length(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t expected,
    const char* function,
    const Communicator& group);

/// @throws tessera::Error unless the ranks divide dimension `dim`, which is not
///     empty.
void check_divides(
    const at::Tensor& tensor,
    int64_t dim,
    const char* function,
    const Communicator& group);

} // namespace tessera

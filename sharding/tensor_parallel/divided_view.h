// SPDX-License-Identifier: Apache-2.0
#pragma once
// `divided_view()` follows a divided dimension through a view.

#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

namespace tessera::sharding {

/// Returns how a view of a divided tensor is divided, if every rank's part is
/// one of the view too: features that are viewed as heads, or the other way
/// round. Nothing if the parts of a rank would lie apart or heads would be cut.
/// @param from sizes of the whole tensor.
/// @param to sizes of the whole view, without -1.
std::optional<DividedDim> divided_view(
    at::IntArrayRef from,
    const DividedDim& divided,
    at::IntArrayRef to);

} // namespace tessera::sharding

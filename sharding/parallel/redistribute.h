// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changing what the ranks have of a tensor.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/placement.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// The same tensor placed as `to` says ([Note: placements]). Differentiable,
/// twice too; collective, blocks, and must be called by all ranks in the same
/// order, as the functions of group_operations.h that it consists of. Axes that
/// are placed alike in both, and groups of one, cost nothing. What goes from a
/// Shard to another one is gathered for a moment; so are summands that go to
/// uneven parts.
///
/// ```
/// // [tokens, features]: data ranks have tokens, tensor ranks have summands.
/// y = redistribute(x, {tokens, features}, {Shard{0}, Partial{}},
///                  {Shard{0}, Shard{1}}, {&data, &tensor});
/// ```
/// @param tensor this rank's, as `from` says.
/// @param sizes of the whole.
/// @param groups this rank's group on each axis; they outlive the graph.
/// @throws tessera::Error naming axis, dimension and sizes when the tensor is
///     not what `from` says, or cannot be placed as `to` says.
at::Tensor redistribute(
    const at::Tensor& tensor,
    at::IntArrayRef sizes,
    const Placements& from,
    const Placements& to,
    at::ArrayRef<Communicator*> groups);

/// On one axis, with equal parts.
/// @throws tessera::Error when its ranks do not divide the dimension evenly.
at::Tensor redistribute(
    const at::Tensor& tensor,
    const Placement& from,
    const Placement& to,
    Communicator& group);

} // namespace tessera

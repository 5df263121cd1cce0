// SPDX-License-Identifier: Apache-2.0
#pragma once
// `redistribute()` changes how a tensor is placed on the ranks of a mesh.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensors/placement.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// Changes the placement of a tensor from `from` to `to`; see
/// [Note: placements]. Differentiable twice. Collective; blocks; all ranks must
/// call it in the same order, as the functions of group_operations.h that it
/// consists of. Axes with equal placements and groups of one rank cost nothing.
/// A change from one Shard to another gathers the dimension temporarily; a
/// change from Partial to a Shard of uneven parts all-reduces the whole first.
///
/// ```
/// // [tokens, features]: data ranks have tokens, tensor ranks have summands.
/// y = redistribute(x, {tokens, features}, {Shard{0}, Partial{}},
///                  {Shard{0}, Shard{1}}, {&data, &tensor});
/// ```
/// @param tensor what this rank has under `from`.
/// @param sizes of the whole tensor.
/// @param groups this rank's group on each axis; must outlive the graph.
/// @throws tessera::Error naming axis, dimension and sizes when the sizes of
///   `tensor` do not match `from`, or it cannot be placed as `to`.
at::Tensor redistribute(
    const at::Tensor& tensor,
    at::IntArrayRef sizes,
    const Placements& from,
    const Placements& to,
    at::ArrayRef<Communicator*> groups);

/// As above for one axis and equal parts.
/// @throws tessera::Error when the dimension is not a multiple of the number of
///   ranks.
at::Tensor redistribute(
    const at::Tensor& tensor,
    const Placement& from,
    const Placement& to,
    Communicator& group);

} // namespace tessera

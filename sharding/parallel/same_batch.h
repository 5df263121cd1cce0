// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that divide a model between them work on one batch.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// Finds out whether all ranks of a group (ParallelGroup::kOneBatch, say) have
/// the same tensors: their number, types, sizes and bits. A data loader that
/// was seeded by the rank is found here, and not in a loss that will not fall.
/// Collective; blocks; tensors of a device are copied to the host.
/// @throws tessera::Error on every rank, naming those that differ from rank 0
///     of the group.
void check_same_batch(
    const std::vector<at::Tensor>& batch,
    Communicator& group);

/// Gives all ranks of a group rank 0's values, for data that only it has read.
/// Collective; blocks.
/// @param batch contiguous, in number, types and sizes the same on all ranks;
///     elsewhere than on rank 0 overwritten.
void broadcast_batch(const std::vector<at::Tensor>& batch, Communicator& group);

} // namespace tessera

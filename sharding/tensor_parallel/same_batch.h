// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_same_batch()` checks that ranks that divide a model work on the same
// batch.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::sharding {

/// Checks whether all ranks of a group (e.g. ParallelGroup::kOneBatch) have the
/// same tensors: number, dtypes, sizes and bits. It detects, for example, a
/// data loader that was seeded with the rank. Collective; blocks; tensors on a
/// device are copied to the host.
/// @throws tessera::Error on every rank, naming those that differ from rank 0
///   of the group.
void check_same_batch(
    const std::vector<at::Tensor>& batch,
    Communicator& group);

/// Broadcasts the values of rank 0 to all ranks of a group, for data that only
/// rank 0 has read. Collective; blocks.
/// @param batch contiguous tensors, equal in number, dtypes and sizes on all
///   ranks; overwritten on all ranks but rank 0.
void broadcast_batch(const std::vector<at::Tensor>& batch, Communicator& group);

} // namespace tessera::sharding

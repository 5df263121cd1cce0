// SPDX-License-Identifier: Apache-2.0
#pragma once
// `meet()` has the ranks of one host open one ShmRegion.

#include "tessera/runtime/comm/shm_region.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

namespace tessera::runtime {

/// Runs `step` on every rank. Collective; blocks until all have run it.
/// @param key prefix of the keys that it takes in the store.
/// @throws tessera::Error on every rank, with the same reason, which names the
///   rank, when the step of a rank has thrown a std::exception; LostRankError
///   when a rank has ended or does not come, if the store is a GroupStore.
void all_succeed(
    c10d::Store& store,
    const std::string& key,
    int rank,
    int size,
    const std::function<void()>& step);

/// Creates a region on rank 0 and opens it on the others. Collective; blocks.
/// @throws tessera::Error on every rank, with the same reason, when a rank
///   cannot share memory with the others.
ShmRegion meet(c10d::Store& store, int rank, int size);

} // namespace tessera::runtime

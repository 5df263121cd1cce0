// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardTiers` says on which tiers the shards of a page rest, and `ShardStores`
// gives the stores there.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/shard_store.h"

namespace tessera::runtime {

/// The tiers of one page's shards.
struct ShardTiers {
  MemoryTier parameters = MemoryTier::kDevice;
  MemoryTier gradients = MemoryTier::kDevice;
  /// Of master weights that it has in addition to its parameters, and of the
  /// optimizer's state.
  MemoryTier state = MemoryTier::kDevice;
};

/// Where one rank's shards of a page rest; null: on the parameters' device.
struct ShardStores {
  ShardStore* parameters = nullptr;
  ShardStore* gradients = nullptr;
  ShardStore* state = nullptr;
};

} // namespace tessera::runtime

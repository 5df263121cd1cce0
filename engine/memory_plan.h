// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_page_memory()` computes what the pages of a model take, before anything
// is allocated.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/page_spec.h"
#include "tessera/sharding/shard_stores.h"

#include <vector>

namespace tessera::engine {

/// Bytes of one rank's shards: weights, master weights beside them and
/// gradients, as the ledger will count them. Pure arithmetic.
/// @param tiers per page.
TierBytes plan_page_memory(
    const std::vector<sharding::PageSpec>& pages,
    const std::vector<sharding::ShardTiers>& tiers,
    const PagerOptions& options);

/// Adds `more` to `bytes`, by tier and purpose.
void add_bytes(TierBytes& bytes, const TierBytes& more);

} // namespace tessera::engine

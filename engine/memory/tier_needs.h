// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tier_needs()` computes how much memory the pages of a model take, as far as
// known before it is sharded. Upper bounds, the same on every rank.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/offload/placement/tier_plan.h"
#include "tessera/runtime/memory/shard_tiers.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/pager_options.h"

#include <cstdint>
#include <vector>

namespace tessera::engine {

/// What plan_tiers() is made from.
/// @param pages must outlive the result.
offload::TierNeeds tier_needs(
    const std::vector<sharding::PageSpec>& pages,
    const OptimizerRules& rules,
    const sharding::PagerOptions& sharding);

/// Of one page.
offload::PageNeeds page_needs(
    const sharding::PageSpec& page,
    const OptimizerRules& rules);

/// The most that a snapshot of parameters and optimizer state takes; see
/// EngineOptions::save_in_background.
int64_t snapshot_bytes(
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierNeeds& needs);

/// Bytes on the device besides optimizer state: shards of parameters and
/// gradients that rest there, and the smallest slots.
/// @param tiers per page; empty: everything is on the device.
int64_t device_needs(
    const std::vector<sharding::PageSpec>& pages,
    const sharding::PagerOptions& sharding,
    std::vector<runtime::ShardTiers> tiers = {});

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_tiers()` decides on which tier each page's shards rest: arithmetic, the
// same on every rank.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/state_needs.h"
#include "tessera/engine/placement_options.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/pages/shard_stores.h"

#include <vector>

namespace tessera::engine {

struct TierPlan {
  std::vector<sharding::ShardTiers> pages;
  /// The most device memory for streamed state; 0: there is none, or no room
  /// for it.
  int64_t device_stage_bytes = 0;

  /// Whether something rests there.
  bool uses(MemoryTier tier) const;
};

/// Places what the options leave open as the budget has room. State: the first
/// groups on the device, as many as memory.device_bytes has room for; the next
/// ones on the host, if memory.host_bytes is set; the rest in files, if
/// memory.nvme_path is. The last groups get their gradients first, so there is
/// the most time to move their state. Gradients, and then parameters, leave the
/// device likewise, from the first group on, as many as necessary for the rest
/// to fit.
///
/// The sizes are upper bounds (see state_needs.h): a group may rest one tier
/// further down than necessary. What fits nowhere is left on the device, so
/// that the error there says what is missing.
///
/// If some state is not on the device and OffloadOptions::ratio lets the device
/// update it, the buffers for that are reserved on the device first; if the
/// ratio is not set, only if there is room.
/// @throws tessera::Error if state that a user's optimizer keeps would have to
///   rest in files.
TierPlan plan_tiers(
    const std::vector<sharding::PageSpec>& pages,
    const OptimizerRules& optimizer,
    const PlacementOptions& placement,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const sharding::PagerOptions& sharding);

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tier each group's shards go to: arithmetic, the same on every rank.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/state_needs.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/grouping.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_mesh.h"

#include <vector>

namespace tessera {

/// Per group.
struct TierPlan {
  std::vector<ShardTiers> shards; ///< of weights and gradients
  std::vector<MemoryTier> state; ///< master weights and moments
  /// The most that streamed state may take of the device; 0: there is none, or
  /// no room for it.
  int64_t device_stage_bytes = 0;
};

/// What the options do not say is placed as the budget has room. State: the
/// first groups on the device, as many as memory.device_bytes has room for; the
/// next ones on the host, if memory.host_bytes is set; the rest in files, if
/// memory.nvme_path is. The last groups get their gradients first, so that
/// there is the most time for their state to come and go. Gradients, and then
/// parameters, leave the device likewise, from the first group on, as many as
/// must for the rest to fit.
///
/// The sizes that it plans with are bounds from above (see state_needs.h): a
/// group may rest one tier further down than it had to. What fits nowhere is
/// left on the device, so that its error says what is missing.
///
/// Where some state is not on the device and OffloadOptions::ratio lets the
/// device update it, the buffers for that are set aside on the device first; if
/// nobody has asked for it, only where there is room.
/// @throws tessera::Error when state that a user's optimizer keeps is to rest
///   in files.
TierPlan plan_tiers(
    const std::vector<GroupSpec>& groups,
    const OptimizerRules& optimizer,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const PagerOptions& sharding,
    const ShardMesh& mesh);

} // namespace tessera

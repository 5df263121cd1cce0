// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_memory()` computes what an engine takes of each memory tier, before
// anything is allocated.

#include "tessera/offload/placement/tier_plan.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/pages/slot_plan.h"

#include <cstdint>
#include <vector>

namespace tessera {

struct EngineOptions; // engine/options/engine_options.h

} // namespace tessera

namespace tessera::engine {

/// What of the options is the pager's.
sharding::PagerOptions pager_options(const EngineOptions& options);

/// What the plan is made from; all of it is known before there are pages.
struct MemoryNeeds {
  const std::vector<sharding::PageSpec>& pages;
  const offload::TierPlan& tiers;
  const sharding::SlotPlan& slots;
  TierBytes optimizer{}; ///< ShardedOptimizer::planned_bytes()
  int64_t libraries = 0; ///< library_bytes()
  bool offloads_activations = false; ///< some of them rest on the host
  int64_t snapshot = 0; ///< of EngineOptions::save_in_background
};

struct MemoryPlan {
  /// Bytes of one rank, as the ledger will count them; of activations in host
  /// memory their limit.
  TierBytes bytes{};
  sharding::SlotBudget slots;
};

/// @throws tessera::Error if the device budget is too small, with what is
///   needed and how to need less.
MemoryPlan plan_memory(const MemoryNeeds& needs, const EngineOptions& options);

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_updates()` decides where the groups of a wrapped module are updated.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/tier_plan.h"
#include "tessera/engine/optim/update_split.h"
#include "tessera/sharding/pages/page_ranks.h"
#include "tessera/sharding/pages/page_spec.h"

#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

struct UpdatePlan {
  /// Per group: whether its state rests elsewhere and is streamed through the
  /// device for updates. False if its state rests on the device, or the CPU
  /// updates it.
  std::vector<bool> streams;
  /// The resolved OptimizerOptions::overlap; never kAutomatic.
  UpdateOverlap overlap = UpdateOverlap::kOff;
  /// The ratio that was used: OffloadOptions::ratio, or the best one for the
  /// rates.
  double ratio = 1;
  /// The rates of the slowest rank, if they were measured.
  std::optional<UpdateRates> rates;
};

/// Decides for every group whose state is not on the device of the parameters.
/// With OffloadOptions::ratio it only divides; without, it measures for a
/// fraction of a second if there is a choice. The same on all ranks that have
/// the same part of the model; collective over them.
/// @param memory limits what measuring takes of the host for that time.
UpdatePlan plan_updates(
    const std::vector<sharding::PageSpec>& pages,
    const TierPlan& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload,
    const MemoryBudget& memory,
    sharding::PageRanks& ranks);

/// Lines for the log: groups and elements of this rank by tier and updater, and
/// the basis of the decision. Empty if all state is on the device.
std::string update_table(
    const UpdatePlan& plan,
    const std::vector<sharding::PageSpec>& pages,
    const TierPlan& tiers);

} // namespace tessera::engine

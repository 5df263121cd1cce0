// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_updates()` decides where the pages of a wrapped module are updated.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/offload/options/memory_budget.h"
#include "tessera/offload/options/offload_options.h"
#include "tessera/offload/placement/tier_plan.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/offload/updates/update_split.h"
#include "tessera/sharding/pages/page_ranks.h"
#include "tessera/sharding/pages/page_spec.h"

#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// The types of a page's tensors in updates.
offload::UpdateTypes update_types(
    const sharding::PageSpec& page,
    const OptimizerRules& rules);

struct UpdatePlan {
  /// Per page: whether its state rests elsewhere and is streamed through the
  /// device for updates. False if its state rests on the device, or the CPU
  /// updates it.
  std::vector<bool> streams;
  /// The resolved OptimizerOptions::overlap; never kAutomatic.
  UpdateOverlap overlap = UpdateOverlap::kOff;
  /// The ratio that was used: OffloadOptions::ratio, or the best one for the
  /// rates.
  double ratio = 1;
  /// The rates of the slowest rank, if they were measured.
  std::optional<offload::UpdateRates> rates;
};

/// Decides for every page whose state is not on the device of the parameters.
/// With OffloadOptions::ratio it only divides; without, it measures for a
/// fraction of a second if there is a choice. The same on all ranks that have
/// the same part of the model; collective over them.
/// @param memory limits what measuring takes of the host for that time.
UpdatePlan plan_updates(
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload,
    const MemoryBudget& memory,
    sharding::PageRanks& ranks);

/// Lines for the log: pages and elements of this rank by tier and updater, and
/// the basis of the decision. Empty if all state is on the device.
std::string update_table(
    const UpdatePlan& plan,
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers);

} // namespace tessera::engine

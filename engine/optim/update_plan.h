// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which groups of a wrapped module are updated where.

#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/state_tiers.h"
#include "tessera/engine/optim/update_split.h"
#include "tessera/sharding/pager.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct UpdatePlan {
  /// Per group: its state is elsewhere and comes to the device for updates.
  /// False where its state rests on the device, or the CPU updates it.
  std::vector<bool> streams;
  /// What the choice was made by, OffloadOptions::ratio or the best for rates.
  double ratio = 1;
  /// If it was measured: of the slowest rank.
  std::optional<UpdateRates> rates;
};

/// Chooses for every group whose state is not on the parameters' device. With
/// OffloadOptions::ratio it only divides; without it measures where there is a
/// choice, for a fraction of a second. The same on all ranks; collective.
/// @param tiers has planned the pager's groups.
UpdatePlan plan_updates(
    Pager& pager,
    StateTiers& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload);

/// Lines for the log: per tier and updater, groups and elements of this rank,
/// and what decided. Empty when all state is on the device.
std::string update_table(
    const UpdatePlan& plan,
    const Pager& pager,
    const StateTiers& tiers);

} // namespace tessera

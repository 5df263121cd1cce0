// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_updates()` decides where the groups of a wrapped module are updated.

#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/state_tiers.h"
#include "tessera/engine/optim/update_split.h"
#include "tessera/sharding/pager.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

struct UpdatePlan {
  /// Per group: whether its state rests elsewhere and is streamed through the
  /// device for updates. False if its state rests on the device, or the CPU
  /// updates it.
  std::vector<bool> streams;
  /// The ratio that was used: OffloadOptions::ratio, or the best one for the
  /// rates.
  double ratio = 1;
  /// The rates of the slowest rank, if they were measured.
  std::optional<UpdateRates> rates;
};

/// Decides for every group whose state is not on the device of the parameters.
/// With OffloadOptions::ratio it only divides; without, it measures for a
/// fraction of a second if there is a choice. The same on all ranks;
/// collective.
/// @param tiers has planned the pager's groups.
UpdatePlan plan_updates(
    sharding::Pager& pager,
    StateTiers& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload);

/// Lines for the log: groups and elements of this rank by tier and updater, and
/// the basis of the decision. Empty if all state is on the device.
std::string update_table(
    const UpdatePlan& plan,
    const sharding::Pager& pager,
    const StateTiers& tiers);

} // namespace tessera::engine

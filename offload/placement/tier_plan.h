// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_tiers()` decides on which tier each page's shards rest: arithmetic, the
// same on every rank.

#include "tessera/offload/options/memory_budget.h"
#include "tessera/offload/options/offload_options.h"
#include "tessera/offload/options/placement_options.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/shard_tiers.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::offload {

/// What one page takes of memory on one rank. Upper bounds, in bytes as stores
/// count them.
struct PageNeeds {
  std::string name;
  int64_t parameters = 0; ///< shard of the weights
  int64_t gradients = 0; ///< shard of the gradients; 0: it keeps none
  /// Separate master weights and moments; 0: it is not trained.
  int64_t state = 0;
  int64_t segments = 0; ///< the most runs in one update
  /// Staging in host memory when a step updates the page there: of state in a
  /// file; of weights and gradients in a file, or on a device that is not the
  /// CPU.
  int64_t staged_state = 0;
  int64_t staged_parameters = 0;
  int64_t staged_gradients = 0;
  /// Memory for speculated updates: a second copy of state on the same tier (on
  /// the host, if that is a device that is the CPU), and of weights on the
  /// host.
  int64_t second_state = 0;
  int64_t second_weights = 0;
  /// False if the optimizer keeps state of its own kind in memory.
  bool may_rest_in_files = true;
};

/// What the plan is made from; the same on every rank.
struct TierNeeds {
  std::vector<PageNeeds> pages;
  c10::Device device = at::kCPU; ///< of the parameters
  /// The bytes on the device besides optimizer state, if the pages rest on
  /// these tiers.
  std::function<int64_t(const std::vector<runtime::ShardTiers>&)> device_bytes;
};

struct TierPlan {
  std::vector<runtime::ShardTiers> pages;
  /// Whether state elsewhere may be streamed through the device: the options
  /// permit it, and there is room.
  bool may_stream = false;

  /// Whether something rests there.
  bool uses(MemoryTier tier) const;
};

/// Places what the options leave open as the budget has room. State: the first
/// pages on the device, as many as memory.device_bytes has room for; the next
/// ones on the host, if memory.host_bytes is set; the rest in files, if
/// memory.nvme_path is. The last pages get their gradients first, so there is
/// the most time to move their state. Gradients, and then parameters, leave the
/// device likewise, from the first page on, as many as necessary for the rest
/// to fit.
///
/// The sizes are upper bounds: a page may rest one tier further down than
/// necessary. What fits nowhere is left on the device, so that the error there
/// says what is missing.
///
/// If some state is not on the device and OffloadOptions::ratio lets the device
/// update it, the buffers for that are reserved on the device first; if the
/// ratio is not set, only if there is room.
/// @throws tessera::Error if state that a user's optimizer keeps would have to
///   rest in files.
TierPlan plan_tiers(
    const TierNeeds& needs,
    const PlacementOptions& placement,
    const MemoryBudget& memory,
    const OffloadOptions& offload);

} // namespace tessera::offload

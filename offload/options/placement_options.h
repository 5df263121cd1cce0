// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PlacementOptions` say on which memory tier each kind of thing rests.

#include "tessera/runtime/memory/memory_ledger.h"

#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

struct MemoryBudget; // offload/options/memory_budget.h

/// Where a rank's share of each kind rests between its uses. No value: on the
/// device, and as far as MemoryBudget::device_bytes has no room, on the host or
/// in files ("auto" in a configuration). The numbers do not depend on it.
struct PlacementOptions {
  /// Shards of parameters, as operators use them. Those that rest elsewhere are
  /// copied to the device for their operators, even if the world size is 1.
  std::optional<MemoryTier> parameters;
  /// Shards of gradients.
  std::optional<MemoryTier> gradients;
  /// Master weights and moments. What is not on the device of the parameters
  /// is updated by the CPU, or passes through the device
  /// (OffloadOptions::ratio).
  std::optional<MemoryTier> optimizer;
  /// Tensors that operators save for backward. kDevice: operators keep them as
  /// usual; only the arguments of checkpointed blocks that ask for it
  /// (CheckpointOptions::inputs_on_host) rest on the host. kHost: every tensor
  /// is copied to the host as soon as it is saved, and what exceeds
  /// OffloadOptions::prefetch_bytes (and MemoryBudget::activation_bytes, if
  /// given) is freed on the device. No value: what exceeds activation_bytes
  /// leaves the device, oldest first. There is no kNvme.
  std::optional<MemoryTier> activations = MemoryTier::kDevice;
};

void visit_fields(runtime::OptionFields& fields, PlacementOptions& options);

/// @throws tessera::Error on a tier that the memory options do not have.
void check(const PlacementOptions& placement, const MemoryBudget& memory);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory training takes, as far as it can be told before a model is
// divided. Bounds from above, the same on every rank.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/grouping.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_mesh.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// Where a group's shards of weights and gradients rest.
struct ShardTiers {
  MemoryTier parameters = MemoryTier::kDevice;
  MemoryTier gradients = MemoryTier::kDevice;
};

/// Moments per element, at most.
int max_moments(const UpdateRule& rule);

/// Of one group on one rank, in bytes.
struct StateNeeds {
  int64_t state = 0; ///< its own master weights and moments
  /// What passes through the host when a step updates it there: its state from
  /// a file, and weights and gradients from a file, or from a device that is
  /// not the CPU.
  int64_t staged_state = 0;
  int64_t staged_shards = 0;
  /// What speculated updates take: state once more on the same tier (on the
  /// host where that is a device that is the CPU), and weights on the host.
  int64_t second_state = 0;
  int64_t second_weights = 0;
  /// False where the optimizer keeps state of its own kind in memory.
  bool may_rest_in_files = true;
};

StateNeeds state_needs(
    const GroupSpec& group,
    const OptimizerRules& optimizer,
    const PagerOptions& sharding,
    const ShardMesh& mesh,
    const ShardTiers& tiers = {});

/// What a group's shards of weights and gradients take in a store.
int64_t parameter_bytes(const GroupSpec& group, const ShardMesh& mesh);
int64_t gradient_bytes(
    const GroupSpec& group,
    const PagerOptions& sharding,
    const ShardMesh& mesh);

/// Bytes on the device beside optimizer state: shards of parameters and
/// gradients that rest there, and the least of slots.
/// @param tiers per group; empty: everything is on the device.
int64_t device_needs(
    const std::vector<GroupSpec>& groups,
    const PagerOptions& sharding,
    const ShardMesh& mesh,
    std::vector<ShardTiers> tiers = {});

} // namespace tessera

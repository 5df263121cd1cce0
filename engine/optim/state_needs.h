// SPDX-License-Identifier: Apache-2.0
#pragma once
// `state_needs()` and `device_needs()` compute how much memory training takes,
// as far as known before a model is sharded. Upper bounds, the same on every
// rank.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/pages/shard_stores.h"

#include <cstdint>
#include <vector>

namespace tessera::engine {

/// The state of every parameter begins at a multiple of this many elements, as
/// shards do.
inline constexpr int64_t kStateAlignment = 16;

/// Bytes of one group on one rank.
struct StateNeeds {
  int64_t state = 0; ///< separate master weights and moments
  /// Staging in host memory when a step updates the group there: state from a
  /// file; weights and gradients from a file, or from a device that is not the
  /// CPU.
  int64_t staged_state = 0;
  int64_t staged_shards = 0;
  /// Memory for speculated updates: a second copy of state on the same tier (on
  /// the host, if that is a device that is the CPU), and of weights on the
  /// host.
  int64_t second_state = 0;
  int64_t second_weights = 0;
  /// False if the optimizer keeps state of its own kind in memory.
  bool may_rest_in_files = true;
};

/// @param tiers of the weights and gradients.
StateNeeds state_needs(
    const sharding::PageSpec& page,
    const OptimizerRules& optimizer,
    const sharding::ShardTiers& tiers = {});

/// Bytes that a page's shards of weights and of gradients take in a store.
int64_t parameter_bytes(const sharding::PageSpec& page);
int64_t gradient_bytes(const sharding::PageSpec& page);

/// Bytes on the device besides optimizer state: shards of parameters and
/// gradients that rest there, and the smallest slots.
/// @param tiers per page; empty: everything is on the device.
int64_t device_needs(
    const std::vector<sharding::PageSpec>& pages,
    const sharding::PagerOptions& sharding,
    std::vector<sharding::ShardTiers> tiers = {});

} // namespace tessera::engine

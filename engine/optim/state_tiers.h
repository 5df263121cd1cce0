// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StateTiers` has the stores in which the shards of each page rest:
// parameters, gradients and optimizer state.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/tier_plan.h"
#include "tessera/offload/host_store.h"
#include "tessera/offload/nvme_store.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/page_spec.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_mesh.h"
#include "tessera/sharding/shard_stores.h"

#include <memory>
#include <vector>

namespace tessera::engine {

/// The stores of one rank. All state of a page, its separate master weights and
/// its moments, is on one tier.
class StateTiers {
 public:
  /// Makes the stores that the plan uses.
  /// @param ledger must outlive this object. All options are checked.
  /// @throws tessera::Error if a requested tier is not available, e.g. if the
  ///   file cannot be created.
  StateTiers(
      TierPlan plan,
      const MemoryBudget& memory,
      c10::Device device,
      MemoryLedger& ledger);

  const TierPlan& plan() const {
    return plan_;
  }
  /// Per page.
  std::vector<sharding::ShardStores> stores() const;

  MemoryTier tier(size_t group) const {
    return plan_.pages[group].state;
  }
  /// The store of the state of a group; null: on the device of the parameters.
  runtime::ShardStore* store(size_t group) const {
    return store_of(tier(group));
  }
  /// The store for the small state that a method must have in memory where the
  /// group is updated; null: on the device of the parameters.
  runtime::ShardStore* memory_store(size_t group) const;

  /// See TierPlan.
  int64_t device_stage_bytes() const {
    return plan_.device_stage_bytes;
  }
  /// Whether the weights or gradients of a group are not on the device.
  bool shards_are_apart(size_t group) const {
    const sharding::ShardTiers& tiers = plan_.pages[group];
    return tiers.parameters != MemoryTier::kDevice ||
           tiers.gradients != MemoryTier::kDevice;
  }

  /// The memory for staging in the host.
  offload::HostMemory& host_memory() {
    return *host_memory_;
  }
  /// Bytes of host memory that the stores use themselves.
  int64_t staging_bytes() const {
    return nvme_ ? offload::BlockPipeline::staging_bytes() : 0;
  }

 private:
  runtime::ShardStore* store_of(MemoryTier tier) const;
  bool uses(MemoryTier tier) const;

  TierPlan plan_;
  std::unique_ptr<offload::HostMemory> host_memory_;
  std::unique_ptr<offload::HostStore> host_;
  std::unique_ptr<offload::NvmeStore> nvme_;
};

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StateTiers` decides on which tier the shards of each group rest: parameters,
// gradients and optimizer state.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/tier_plan.h"
#include "tessera/offload/host_store.h"
#include "tessera/offload/nvme_store.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_placement.h"

#include <memory>
#include <vector>

namespace tessera::engine {

/// Owns the stores of a rank, and assigns each group's shards to them as
/// plan_tiers() decides. All state of a group, its separate master weights and
/// its moments, is on one tier.
class StateTiers : public sharding::ShardPlacement {
 public:
  /// @param ledger must outlive this object. All options are checked.
  StateTiers(
      const OptimizerRules& optimizer,
      const MemoryBudget& memory,
      const OffloadOptions& offload,
      const PagerOptions& sharding,
      MemoryLedger& ledger);

  /// @throws tessera::Error if a requested tier is not available, e.g. if the
  ///   file cannot be created.
  void plan(
      const std::vector<sharding::GroupSpec>& groups,
      const sharding::ShardMesh& mesh) override;
  runtime::ShardStore* parameter_store(size_t group) override {
    return store_of(plan_.shards[group].parameters);
  }
  runtime::ShardStore* master_store(size_t group) override {
    return store(group);
  }
  runtime::ShardStore* gradient_store(size_t group) override {
    return store_of(plan_.shards[group].gradients);
  }

  MemoryTier tier(size_t group) const {
    return plan_.state[group];
  }
  /// The store of the state of a group; null: on the device of the parameters.
  runtime::ShardStore* store(size_t group) const {
    return store_of(plan_.state[group]);
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
    const ShardTiers& tiers = plan_.shards[group];
    return tiers.parameters != MemoryTier::kDevice ||
           tiers.gradients != MemoryTier::kDevice;
  }

  /// The memory for staging in the host. Call it after plan().
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
  void make_stores(c10::Device device);

  OptimizerRules optimizer_;
  MemoryBudget memory_;
  OffloadOptions offload_;
  PagerOptions sharding_;
  MemoryLedger& ledger_;
  TierPlan plan_;
  std::unique_ptr<offload::HostMemory> host_memory_;
  std::unique_ptr<offload::HostStore> host_;
  std::unique_ptr<offload::NvmeStore> nvme_;
};

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// On which tier the shards of each group rest: its parameters, its gradients,
// its optimizer state.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/tier_plan.h"
#include "tessera/offload/host_store.h"
#include "tessera/offload/nvme_store.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_placement.h"

#include <memory>
#include <vector>

namespace tessera {

/// Owns the stores of a rank, and gives each group's shards theirs, as
/// plan_tiers() says. All state of a group, its own master weights and its
/// moments, is on one tier.
class StateTiers : public ShardPlacement {
 public:
  /// @param ledger outlives this object. All options checked.
  StateTiers(
      const OptimizerRules& optimizer,
      const MemoryBudget& memory,
      const OffloadOptions& offload,
      const PagerOptions& sharding,
      MemoryLedger& ledger);

  /// @throws tessera::Error when a tier that was asked for is not there, e.g.
  ///   when the file cannot be made.
  void plan(const std::vector<GroupSpec>& groups, const ShardMesh& mesh)
      override;
  ShardStore* parameter_store(size_t group) override {
    return store_of(plan_.shards[group].parameters);
  }
  ShardStore* master_store(size_t group) override {
    return store(group);
  }
  ShardStore* gradient_store(size_t group) override {
    return store_of(plan_.shards[group].gradients);
  }

  MemoryTier tier(size_t group) const {
    return plan_.state[group];
  }
  /// Where the state of a group rests; null: on the parameters' device.
  ShardStore* store(size_t group) const {
    return store_of(plan_.state[group]);
  }
  /// For the little state that a method must have in memory where the group is
  /// updated; null: on the parameters' device.
  ShardStore* memory_store(size_t group) const;

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

  /// For what passes through the host. After plan().
  HostMemory& host_memory() {
    return *host_memory_;
  }
  /// Bytes of the host that the stores need for themselves.
  int64_t staging_bytes() const {
    return nvme_ ? BlockPipeline::staging_bytes() : 0;
  }

 private:
  ShardStore* store_of(MemoryTier tier) const;
  bool uses(MemoryTier tier) const;
  void make_stores(c10::Device device);

  OptimizerRules optimizer_;
  MemoryBudget memory_;
  OffloadOptions offload_;
  PagerOptions sharding_;
  MemoryLedger& ledger_;
  TierPlan plan_;
  std::unique_ptr<HostMemory> host_memory_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<NvmeStore> nvme_;
};

} // namespace tessera

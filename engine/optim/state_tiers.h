// SPDX-License-Identifier: Apache-2.0
#pragma once
// On which tier the optimizer state of each group rests.

#include "tessera/engine/memory_budget.h"
#include "tessera/engine/offload_options.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/offload/host_store.h"
#include "tessera/offload/nvme_store.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/shard_placement.h"

#include <memory>
#include <optional>
#include <vector>

namespace tessera {

/// Owns the stores of a rank, and divides groups among them. All state of a
/// group, its own master weights and its moments, is on one tier. As
/// OptimizerOptions::placement says, or by itself (kAutomatic): the first
/// groups on the device, as many as memory.device_bytes has room for; the next
/// ones on the host, if memory.host_bytes is set; the rest in files, if
/// memory.nvme_path is. The last groups get their gradients first, so that
/// there is the most time for their state to come and go.
///
/// The sizes that it plans with are bounds from above (see state_needs.h): a
/// group may rest one tier further down than it had to.
class StateTiers : public ShardPlacement {
 public:
  /// @param ledger outlives this object. All options checked.
  StateTiers(
      const OptimizerOptions& optimizer,
      const MemoryBudget& memory,
      const OffloadOptions& offload,
      const PagerOptions& sharding,
      MemoryLedger& ledger);

  /// @throws tessera::Error when a tier that was asked for is not there, e.g.
  ///   when the file cannot be made.
  void plan(const std::vector<GroupSpec>& groups, const ShardMesh& mesh)
      override;
  ShardStore* master_store(size_t group) override {
    return store(group);
  }

  MemoryTier tier(size_t group) const {
    return tiers_[group];
  }
  /// Where the state of a group rests; null: on the parameters' device.
  ShardStore* store(size_t group) const;
  /// For the little state that a method must have in memory where the group is
  /// updated; null: on the parameters' device.
  ShardStore* memory_store(size_t group) const;

  /// The most that streamed state may take of the device; 0: there is no room
  /// for it, or no reason. After plan().
  int64_t device_stage_bytes() const {
    return device_stage_bytes_;
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
  void place(const std::vector<GroupSpec>& groups, const ShardMesh& mesh);
  int64_t device_room(
      const std::vector<GroupSpec>& groups,
      const ShardMesh& mesh) const;
  int64_t reserve_device_stage(
      const std::vector<GroupSpec>& groups,
      const ShardMesh& mesh,
      int64_t room);
  void make_stores(c10::Device device);

  OptimizerOptions optimizer_;
  MemoryBudget memory_;
  OffloadOptions offload_;
  PagerOptions sharding_;
  MemoryLedger& ledger_;
  std::vector<MemoryTier> tiers_; ///< per group
  int64_t device_stage_bytes_ = 0;
  std::unique_ptr<HostMemory> host_memory_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<NvmeStore> nvme_;
};

} // namespace tessera

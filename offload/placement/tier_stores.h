// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TierStores` makes the stores in which the shards of each page rest:
// parameters, gradients and optimizer state.

#include "tessera/offload/options/memory_budget.h"
#include "tessera/offload/placement/tier_plan.h"
#include "tessera/offload/stores/host_store.h"
#include "tessera/offload/stores/nvme_store.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/shard_tiers.h"

#include <memory>
#include <vector>

namespace tessera::offload {

/// The stores of one rank. All state of a page, its separate master weights and
/// its moments, is on one tier.
class TierStores {
 public:
  /// Makes the stores that the plan uses.
  /// @param ledger must outlive this object. All options are checked.
  /// @throws tessera::Error if a requested tier is not available, e.g. if the
  ///   file cannot be created.
  TierStores(
      TierPlan plan,
      const MemoryBudget& memory,
      c10::Device device,
      MemoryLedger& ledger);

  /// Per page.
  std::vector<runtime::ShardStores> stores() const;

  /// The store of the state of a page; null: on the device of the parameters.
  runtime::ShardStore* store(size_t page) const {
    return store_of(plan_.pages[page].state);
  }
  /// The store for the small state that a method must have in memory where the
  /// page is updated; null: on the device of the parameters.
  runtime::ShardStore* memory_store(size_t page) const;

  /// The memory for staging in the host.
  HostMemory& host_memory() {
    return *host_memory_;
  }

 private:
  runtime::ShardStore* store_of(MemoryTier tier) const;

  TierPlan plan_;
  std::unique_ptr<HostMemory> host_memory_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<NvmeStore> nvme_;
};

} // namespace tessera::offload

// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/placement/tier_stores.h"

#include "tessera/runtime/memory/dry_heap.h"

#include <utility>

namespace tessera::offload {

TierStores::TierStores(
    TierPlan plan,
    const MemoryBudget& memory,
    c10::Device device,
    MemoryLedger& ledger)
    : plan_(std::move(plan)) {
  host_memory_ = std::make_unique<HostMemory>(
      HostMemoryOptions{memory.host_bytes, device}, ledger);
  host_ = std::make_unique<HostStore>(*host_memory_);
  if (plan_.uses(MemoryTier::kNvme)) {
    nvme_ = std::make_unique<NvmeStore>(
        NvmeOptions{memory.nvme_path, memory.nvme_bytes},
        *host_memory_,
        ledger,
        runtime::dry_allocation().heap != nullptr ? dry_io_calls()
                                                  : system_io_calls());
  }
}

std::vector<runtime::ShardStores> TierStores::stores() const {
  std::vector<runtime::ShardStores> stores;
  for (const runtime::ShardTiers& tiers : plan_.pages) {
    stores.push_back(
        {store_of(tiers.parameters),
         store_of(tiers.gradients),
         store_of(tiers.state)});
  }
  return stores;
}

runtime::ShardStore* TierStores::store_of(MemoryTier tier) const {
  switch (tier) {
    case MemoryTier::kDevice:
      return nullptr;
    case MemoryTier::kHost:
      return host_.get();
    case MemoryTier::kNvme:
      return nvme_.get();
  }
  return nullptr;
}

runtime::ShardStore* TierStores::memory_store(size_t page) const {
  return store(page) != nullptr ? host_.get() : nullptr;
}

} // namespace tessera::offload

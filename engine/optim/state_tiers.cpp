// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_tiers.h"

#include <utility>

namespace tessera::engine {

StateTiers::StateTiers(
    TierPlan plan,
    const MemoryBudget& memory,
    c10::Device device,
    MemoryLedger& ledger)
    : plan_(std::move(plan)) {
  host_memory_ = std::make_unique<offload::HostMemory>(
      offload::HostMemoryOptions{memory.host_bytes, device}, ledger);
  host_ = std::make_unique<offload::HostStore>(*host_memory_);
  if (plan_.uses(MemoryTier::kNvme)) {
    nvme_ = std::make_unique<offload::NvmeStore>(
        offload::NvmeOptions{memory.nvme_path, memory.nvme_bytes},
        *host_memory_,
        ledger);
  }
}

std::vector<sharding::ShardStores> StateTiers::stores() const {
  std::vector<sharding::ShardStores> stores;
  for (const sharding::ShardTiers& tiers : plan_.pages) {
    stores.push_back(
        {store_of(tiers.parameters),
         store_of(tiers.gradients),
         store_of(tiers.state)});
  }
  return stores;
}

runtime::ShardStore* StateTiers::store_of(MemoryTier tier) const {
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

runtime::ShardStore* StateTiers::memory_store(size_t group) const {
  return store(group) != nullptr ? host_.get() : nullptr;
}

} // namespace tessera::engine

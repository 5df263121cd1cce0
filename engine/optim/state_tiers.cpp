// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_tiers.h"

#include <algorithm>

namespace tessera::engine {

StateTiers::StateTiers(
    const OptimizerRules& optimizer,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const PagerOptions& sharding,
    MemoryLedger& ledger)
    : optimizer_(optimizer),
      memory_(memory),
      offload_(offload),
      sharding_(sharding),
      ledger_(ledger) {}

void StateTiers::plan(
    const std::vector<sharding::GroupSpec>& groups,
    const sharding::ShardMesh& mesh) {
  plan_ = plan_tiers(groups, optimizer_, memory_, offload_, sharding_, mesh);
  make_stores(groups.front().parameters.front().tensor.device());
}

bool StateTiers::uses(MemoryTier tier) const {
  return std::find(plan_.state.begin(), plan_.state.end(), tier) !=
             plan_.state.end() ||
         std::any_of(
             plan_.shards.begin(), plan_.shards.end(), [tier](const auto& of) {
               return of.parameters == tier || of.gradients == tier;
             });
}

void StateTiers::make_stores(c10::Device device) {
  host_memory_ = std::make_unique<offload::HostMemory>(
      offload::HostMemoryOptions{memory_.host_bytes, device}, ledger_);
  host_ = std::make_unique<offload::HostStore>(*host_memory_);
  if (uses(MemoryTier::kNvme)) {
    nvme_ = std::make_unique<offload::NvmeStore>(
        offload::NvmeOptions{memory_.nvme_path, memory_.nvme_bytes},
        *host_memory_,
        ledger_);
  }
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
  return tier(group) == MemoryTier::kDevice ? nullptr : host_.get();
}

} // namespace tessera::engine

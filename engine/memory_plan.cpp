// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory_plan.h"

#include "tessera/offload/host_memory.h"
#include "tessera/offload/scratch_file.h"

namespace tessera::engine {

namespace {

/// What `bytes` of a tensor take on a tier.
int64_t stored_bytes(MemoryTier tier, int64_t bytes) {
  switch (tier) {
    case MemoryTier::kDevice:
      return bytes;
    case MemoryTier::kHost:
      return offload::HostMemory::rounded(bytes);
    case MemoryTier::kNvme:
      return offload::ScratchFile::rounded(bytes);
  }
  return bytes;
}

} // namespace

TierBytes plan_page_memory(
    const std::vector<sharding::PageSpec>& pages,
    const std::vector<sharding::ShardTiers>& tiers,
    const PagerOptions& options) {
  TierBytes planned{};
  const auto add = [&](MemoryTier tier, MemoryPurpose purpose, int64_t bytes) {
    planned[static_cast<size_t>(tier)][static_cast<size_t>(purpose)] +=
        stored_bytes(tier, bytes);
  };
  for (size_t g = 0; g < pages.size(); ++g) {
    const sharding::PageSpec& page = pages[g];
    add(tiers[g].parameters, MemoryPurpose::kParameters, page.shard_bytes());
    if (page.has_own_master) {
      add(tiers[g].state,
          MemoryPurpose::kOptimizerState,
          page.layout.shard_numel() * static_cast<int64_t>(sizeof(float)));
    }
    // Gradients that are applied in backward have no shard.
    if (!options.update_in_backward) {
      add(tiers[g].gradients,
          MemoryPurpose::kGradients,
          page.gradient_shard_bytes());
    }
  }
  return planned;
}

void add_bytes(TierBytes& bytes, const TierBytes& more) {
  for (size_t tier = 0; tier < bytes.size(); ++tier) {
    for (size_t i = 0; i < bytes[tier].size(); ++i) {
      bytes[tier][i] += more[tier][i];
    }
  }
}

} // namespace tessera::engine

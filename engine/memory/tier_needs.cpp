// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory/tier_needs.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/update_plan.h"
#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/sharding/pages/slot_plan.h"

#include <algorithm>

namespace tessera::engine {

offload::TierNeeds tier_needs(
    const std::vector<sharding::PageSpec>& pages,
    const OptimizerRules& rules,
    const sharding::PagerOptions& sharding) {
  offload::TierNeeds needs;
  needs.device = pages.front().device;
  for (const sharding::PageSpec& page : pages) {
    needs.pages.push_back(page_needs(page, rules));
  }
  needs.device_bytes =
      [&pages, sharding](const std::vector<runtime::ShardTiers>& tiers) {
        return device_needs(pages, sharding, tiers);
      };
  return needs;
}

offload::PageNeeds page_needs(
    const sharding::PageSpec& page,
    const OptimizerRules& rules) {
  using offload::HostMemory;
  using runtime::bytes_of;
  offload::PageNeeds needs;
  needs.name = page.name;
  needs.parameters = HostMemory::rounded(page.shard_bytes());
  needs.gradients = HostMemory::rounded(page.gradient_shard_bytes());
  needs.segments = static_cast<int64_t>(page.parameters.size());
  if (!page.trainable) {
    return needs;
  }
  const OptimizerOptions& optimizer = rules.options();
  const offload::UpdateTypes types = update_types(page, rules);
  const int64_t numel = page.layout.shard_numel();
  int moments = 0;
  for (const sharding::PagedParameter& parameter : page.parameters) {
    const UpdateRule rule =
        rules.settings_for(parameter.record.spec.names).rule;
    moments = std::max(moments, rule.optimizer().max_moments(rule.options()));
    needs.may_rest_in_files =
        needs.may_rest_in_files && rule.optimizer().may_rest_in_files();
  }
  const int64_t separate_master =
      page.has_separate_master
          ? HostMemory::rounded(bytes_of(numel, types.master))
          : 0;
  const int64_t moment = HostMemory::rounded(
      bytes_of(numel + kStateAlignment * needs.segments, types.moment));
  const int64_t average =
      optimizer.ema_decay > 0
          ? HostMemory::rounded(bytes_of(numel, types.master))
          : 0;
  needs.state = separate_master + moments * moment + average;
  needs.staged_state = needs.state;
  if (optimizer.overlap == UpdateOverlap::kSpeculate) {
    needs.second_state = needs.state;
    needs.second_weights = needs.parameters;
  }
  // Also of gradients that rest nowhere, but are applied on the host.
  needs.staged_gradients = HostMemory::rounded(page.first_gradient_bytes());
  needs.staged_parameters = HostMemory::rounded(
      bytes_of(numel, page.has_separate_master ? types.weight : types.master));
  return needs;
}

int64_t snapshot_bytes(
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierNeeds& needs) {
  int64_t bytes = 0;
  for (size_t g = 0; g < pages.size(); ++g) {
    // Separate master weights are state, and saved instead of the weights.
    bytes += needs.pages[g].state +
             (pages[g].has_separate_master ? 0 : needs.pages[g].parameters);
  }
  return bytes;
}

int64_t device_needs(
    const std::vector<sharding::PageSpec>& pages,
    const sharding::PagerOptions& sharding,
    std::vector<runtime::ShardTiers> tiers) {
  tiers.resize(pages.size());
  const sharding::SlotPlan slots(pages, tiers, sharding);
  int64_t bytes = slots.least_gather_bytes() + slots.reduce_bytes();
  for (size_t g = 0; g < pages.size(); ++g) {
    if (tiers[g].parameters == MemoryTier::kDevice) {
      bytes += pages[g].shard_bytes();
    }
    if (tiers[g].gradients == MemoryTier::kDevice) {
      bytes += pages[g].first_gradient_bytes();
    }
  }
  return bytes;
}

} // namespace tessera::engine

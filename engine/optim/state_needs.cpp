// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_needs.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/offload/host_memory.h"
#include "tessera/sharding/pages/slot_plan.h"

#include <algorithm>

namespace tessera::engine {

namespace {

at::ScalarType state_dtype(const sharding::PageSpec& page) {
  return page.dtype == at::kDouble ? at::kDouble : at::kFloat;
}

} // namespace

StateNeeds state_needs(
    const sharding::PageSpec& page,
    const OptimizerRules& rules,
    const sharding::ShardTiers& tiers) {
  const OptimizerOptions& optimizer = rules.options();
  StateNeeds needs;
  if (!page.trainable) {
    return needs;
  }
  const int64_t numel = page.layout.shard_numel();
  const int64_t item = sharding::size_of(state_dtype(page));
  int moments = 0;
  for (const sharding::PagedParameter& parameter : page.parameters) {
    const UpdateRule rule =
        rules.settings_for(parameter.record.spec.names).rule;
    moments = std::max(moments, rule.optimizer().max_moments(rule.options()));
    needs.may_rest_in_files =
        needs.may_rest_in_files && rule.optimizer().may_rest_in_files();
  }
  const auto count = static_cast<int64_t>(page.parameters.size());
  const int64_t own_master =
      page.has_own_master ? offload::HostMemory::rounded(4 * numel) : 0;
  const int64_t moment = offload::HostMemory::rounded(
      (numel + kStateAlignment * count) *
      (optimizer.moment_dtype ? sharding::size_of(*optimizer.moment_dtype)
                              : item));
  needs.state = own_master + moments * moment;
  needs.staged_state = needs.state;
  if (optimizer.overlap == UpdateOverlap::kSpeculate) {
    needs.second_state = needs.state;
    needs.second_weights = parameter_bytes(page);
  }
  const auto passes = [&](MemoryTier tier) {
    return tier == MemoryTier::kNvme ||
           (tier == MemoryTier::kDevice && !page.device.is_cpu());
  };
  if (passes(tiers.gradients)) {
    // Also of gradients that rest nowhere, but are applied on the host.
    needs.staged_shards +=
        offload::HostMemory::rounded(page.first_gradient_bytes());
  }
  if (passes(tiers.parameters)) {
    needs.staged_shards += offload::HostMemory::rounded(
        numel * (own_master > 0 ? sharding::size_of(page.dtype) : item));
  }
  return needs;
}

int64_t parameter_bytes(const sharding::PageSpec& page) {
  return offload::HostMemory::rounded(page.shard_bytes());
}

int64_t gradient_bytes(const sharding::PageSpec& page) {
  return offload::HostMemory::rounded(page.gradient_shard_bytes());
}

int64_t device_needs(
    const std::vector<sharding::PageSpec>& pages,
    const sharding::PagerOptions& sharding,
    std::vector<sharding::ShardTiers> tiers) {
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

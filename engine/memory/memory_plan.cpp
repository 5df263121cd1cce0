// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory/memory_plan.h"

#include "tessera/engine/memory/budget_error.h"
#include "tessera/engine/options/engine_options.h"
#include "tessera/offload/stores/block_pipeline.h"
#include "tessera/offload/stores/tier_bytes.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <optional>

namespace tessera::engine {

namespace {

/// Adds shards: weights, master weights beside them, and gradients.
void add_shards(
    TierBytes& bytes,
    const sharding::PageSpec& page,
    const runtime::ShardTiers& tiers) {
  offload::add_tier_bytes(
      bytes, tiers.parameters, MemoryPurpose::kParameters, page.shard_bytes());
  if (page.has_separate_master) {
    offload::add_tier_bytes(
        bytes,
        tiers.state,
        MemoryPurpose::kOptimizerState,
        page.layout.shard_numel(),
        page.master_dtype());
  }
  offload::add_tier_bytes(
      bytes,
      tiers.gradients,
      MemoryPurpose::kGradients,
      page.gradient_shard_bytes());
}

int64_t& bytes_for(TierBytes& bytes, MemoryTier tier, MemoryPurpose purpose) {
  return bytes[static_cast<size_t>(tier)][static_cast<size_t>(purpose)];
}

/// The limit of activations in host memory: what the options give them, else
/// what the rest leaves of memory.host_bytes.
int64_t activation_bytes(
    const EngineOptions& options,
    const TierBytes& planned) {
  const int64_t rest =
      options.memory.host_bytes.value_or(0) -
      total_bytes(planned[static_cast<size_t>(MemoryTier::kHost)]);
  return options.offload.activation_host_bytes.value_or(
      std::max<int64_t>(0, rest));
}

} // namespace

sharding::PagerOptions pager_options(const EngineOptions& options) {
  return {
      options.sharding,
      options.precision,
      options.update_in_backward,
      options.other_names};
}

MemoryPlan plan_memory(const MemoryNeeds& needs, const EngineOptions& options) {
  MemoryPlan plan{.bytes = needs.optimizer, .slots = {}};
  const auto planned = [&](MemoryTier tier, MemoryPurpose purpose) -> int64_t& {
    return bytes_for(plan.bytes, tier, purpose);
  };
  for (size_t g = 0; g < needs.pages.size(); ++g) {
    add_shards(plan.bytes, needs.pages[g], needs.tiers.pages[g]);
  }
  if (needs.tiers.uses(MemoryTier::kNvme)) {
    planned(MemoryTier::kHost, MemoryPurpose::kStaging) +=
        offload::BlockPipeline::staging_bytes();
  }
  planned(MemoryTier::kDevice, MemoryPurpose::kLibraries) = needs.libraries;
  planned(MemoryTier::kHost, MemoryPurpose::kSnapshot) = needs.snapshot;
  // What only the first step has of gradients: there has to be room for it.
  int64_t first_step = 0;
  for (const sharding::PageSpec& page : needs.pages) {
    first_step += page.first_gradient_bytes() - page.gradient_shard_bytes();
  }
  std::optional<int64_t> slot_bytes;
  if (options.memory.device_bytes) {
    slot_bytes = *options.memory.device_bytes -
                 options.memory.activation_bytes - first_step -
                 total_bytes(plan.bytes.front());
  }
  const auto check_budget = [&](bool fits) {
    TESSERA_CHECK(
        fits,
        "{}",
        device_budget_error(
            options.memory,
            options.placement,
            options.offload,
            plan.bytes,
            first_step));
  };
  const int64_t least_gather = needs.slots.least_gather_bytes();
  if (slot_bytes && least_gather > 0 &&
      *slot_bytes < least_gather + needs.slots.reduce_bytes()) {
    planned(MemoryTier::kDevice, MemoryPurpose::kGatherSlots) = least_gather;
    planned(MemoryTier::kDevice, MemoryPurpose::kReduceSlots) =
        needs.slots.reduce_bytes();
    check_budget(false);
  }
  plan.slots = needs.slots.budget(slot_bytes);
  planned(MemoryTier::kDevice, MemoryPurpose::kGatherSlots) =
      plan.slots.gather_bytes;
  planned(MemoryTier::kDevice, MemoryPurpose::kReduceSlots) =
      plan.slots.reduce_bytes;
  if (needs.offloads_activations) {
    planned(MemoryTier::kHost, MemoryPurpose::kActivations) =
        activation_bytes(options, plan.bytes);
  }
  if (const auto limit = options.memory.device_bytes) {
    // Where nothing is divided there is nothing to choose either.
    const int64_t needed = total_bytes(plan.bytes.front()) + first_step +
                           options.memory.activation_bytes;
    check_budget(needed <= *limit);
  }
  return plan;
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// `Pager`: arenas for unsharded groups and whole gradients, and the plans that
// use them.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

bool Pager::pages_any() const {
  return std::find(pages_.begin(), pages_.end(), true) != pages_.end();
}

bool Pager::keeps_whole_gradients(size_t g) const {
  return tessera::keeps_whole_gradients(options_, zero_stages_[g]);
}

std::vector<PlanEvent> Pager::expected_events() const {
  std::vector<std::vector<int>> blocks;
  std::vector<bool> trainable;
  std::vector<bool> scattered;
  for (const auto& group : groups_) {
    blocks.emplace_back(group->blocks().begin(), group->blocks().end());
    trainable.push_back(group->trainable());
    scattered.push_back(group->scattered());
  }
  return registration_order_events(blocks, trainable, scattered, tied_groups_);
}

PlanLimits Pager::plan_limits() const {
  PlanLimits limits;
  limits.capacity_bytes = gather_arena_.capacity_bytes();
  limits.prefetch_depth = options_.prefetch_depth;
  for (size_t g = 0; g < groups_.size(); ++g) {
    // A group that is not paged is part of the plan but needs no slot.
    limits.group_bytes.push_back(
        pages_[g] ? groups_[g]->padded_bytes()
                  : runtime::OffsetAllocator::kAlignment);
    if (!pages_any()) {
      limits.capacity_bytes += 2 * runtime::OffsetAllocator::kAlignment;
    }
    const bool whole = zero_stages_[g].value_or(options_.zero_stage) < 3;
    limits.stays.push_back(
        !has_budget_ && !reshards_after_forward_[g].value_or(!whole));
    limits.keeps_gradients.push_back(keeps_whole_gradients(g));
  }
  return limits;
}

int64_t Pager::reduce_slot_bytes(const std::vector<PlanEvent>& events) const {
  int64_t kept = 0;
  std::vector<int64_t> passing;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t bytes = buckets_[g] ? buckets_[g]->slot_bytes() : 0;
    const bool keeps = keeps_whole_gradients(g);
    kept += keeps ? bytes + runtime::OffsetAllocator::kAlignment : 0;
    passing.push_back(keeps ? 0 : bytes);
  }
  return kept + peak_reduce_bytes(events, passing);
}

void Pager::make_slots(std::optional<int64_t> slot_bytes) {
  gather_lane_.follow_current(); // the shards were just filled
  if (is_alone() && !options_.update_in_backward) {
    return;
  }
  const auto events = expected_events();
  reduce_arena_.resize(reduce_slot_bytes(events));
  if (!pages_any()) {
    return;
  }
  std::optional<int64_t> gather_bytes = options_.gather_bytes;
  if (slot_bytes) {
    gather_bytes = *slot_bytes - reduce_arena_.capacity_bytes();
  }
  has_budget_ = gather_bytes.has_value();
  const PlanLimits limits = plan_limits();
  const int64_t wanted = capacity_without_exposed_unshards(events, limits);
  TESSERA_CHECK(
      !gather_bytes || *gather_bytes >= wanted,
      "the memory budget is {} bytes too small: besides shards, gradients and optimizer state it must hold {} bytes of unsharded parameters (the largest adjacent groups at the same time). Raise memory.device_bytes, use more ranks, or split the largest module.",
      wanted - gather_bytes.value_or(0),
      wanted);
  int64_t everything = 0;
  for (const int64_t bytes : limits.group_bytes) {
    everything += bytes + runtime::OffsetAllocator::kAlignment;
  }
  gather_arena_.resize(std::min(gather_bytes.value_or(wanted), everything));
}

TierBytes Pager::planned_bytes() const {
  TierBytes bytes{};
  const auto add = [&bytes](
                       MemoryTier tier, MemoryPurpose purpose, int64_t count) {
    bytes[static_cast<size_t>(tier)][static_cast<size_t>(purpose)] += count;
  };
  for (const auto& group : groups_) {
    const runtime::RestingTensor& shard = group->shard();
    add(shard.tier(), MemoryPurpose::kParameters, shard.bytes());
    if (group->has_own_master()) {
      const runtime::RestingTensor& master = group->master();
      add(master.tier(), MemoryPurpose::kOptimizerState, master.bytes());
    }
    if (const auto* bucket = buckets_[group->number].get()) {
      add(bucket->tier(), MemoryPurpose::kGradients, bucket->shard_bytes());
    }
  }
  const MemoryTier device = MemoryTier::kDevice;
  add(device, MemoryPurpose::kGatherSlots, gather_arena_.capacity_bytes());
  add(device, MemoryPurpose::kReduceSlots, reduce_arena_.capacity_bytes());
  return bytes;
}

std::optional<ResidencyPlan> Pager::make_plan(
    const std::vector<PlanEvent>& events) {
  PlanLimits limits = plan_limits();
  auto plan = compile_plan(events, limits);
  // A budget is kept at any cost; a capacity that was computed from an expected
  // order of use that turned out wrong grows.
  if ((!plan || plan->exposed_unshards > 0) && !has_budget_) {
    const int64_t needed = capacity_without_exposed_unshards(events, limits);
    if (needed > limits.capacity_bytes) {
      if (rank() == 0) {
        log_info(
            "gather slots grow from {} to {} bytes: the model uses its parameters in a different order than it registers them",
            limits.capacity_bytes,
            needed);
      }
      gather_arena_.resize(needed);
      limits.capacity_bytes = needed;
    }
    plan = compile_plan(events, limits);
  }
  const int64_t reduce_bytes = reduce_slot_bytes(events);
  if (reduce_bytes > reduce_arena_.capacity_bytes()) {
    while (!held_slots_.empty()) {
      release_held_slot();
    }
    reduce_arena_.resize(reduce_bytes);
  }
  return plan;
}

} // namespace tessera::sharding

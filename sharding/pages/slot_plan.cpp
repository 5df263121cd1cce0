// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/slot_plan.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/offset_allocator.h"

#include <algorithm>

namespace tessera::sharding {

namespace {

constexpr int64_t kAlignment = runtime::OffsetAllocator::kAlignment;

std::vector<PlanEvent> events_of(const std::vector<PageSpec>& pages) {
  std::vector<std::vector<int>> blocks;
  std::vector<bool> trainable;
  std::vector<bool> scattered;
  std::vector<int> tied;
  for (size_t g = 0; g < pages.size(); ++g) {
    blocks.push_back(pages[g].blocks);
    trainable.push_back(pages[g].trainable);
    scattered.push_back(pages[g].scattered);
    if (pages[g].is_tied) {
      tied.push_back(static_cast<int>(g));
    }
  }
  return registration_order_events(blocks, trainable, scattered, tied);
}

} // namespace

SlotPlan::SlotPlan(
    const std::vector<PageSpec>& pages,
    const std::vector<runtime::ShardTiers>& tiers,
    const PagerOptions& options)
    : prefetch_depth_(options.prefetch_depth),
      updates_in_backward_(options.update_in_backward),
      expected_(events_of(pages)) {
  is_alone_ = true;
  for (size_t g = 0; g < pages.size(); ++g) {
    const PageSpec& page = pages[g];
    const bool stored = tiers[g].parameters != MemoryTier::kDevice;
    const bool stores_gradients =
        page.keeps_gradient_shard && tiers[g].gradients != MemoryTier::kDevice;
    const bool has_peers = page.gradient_ranks() > 1;
    paged_.push_back(
        page.mesh.size(kShardAxis) > 1 || stored || page.resting_format);
    pages_any_ = pages_any_ || paged_.back();
    is_alone_ = is_alone_ && !has_peers && !stored && !stores_gradients &&
                !page.resting_format;
    pages_.push_back(
        {page.gather_slot_bytes(),
         page.gradient_slot_bytes(stores_gradients),
         page.keeps_full_gradients,
         page.stays_after_forward});
  }
}

PlanLimits SlotPlan::limits(int64_t capacity_bytes, bool has_budget) const {
  PlanLimits limits;
  limits.capacity_bytes = capacity_bytes;
  limits.prefetch_depth = prefetch_depth_;
  for (size_t g = 0; g < pages_.size(); ++g) {
    // A page that is not paged is part of the plan but needs no slot.
    limits.group_bytes.push_back(
        paged_[g] ? pages_[g].gather_slot_bytes : kAlignment);
    if (!pages_any_) {
      limits.capacity_bytes += 2 * kAlignment;
    }
    limits.stays.push_back(!has_budget && pages_[g].stays_after_forward);
    limits.keeps_gradients.push_back(pages_[g].keeps_full_gradients);
  }
  return limits;
}

int64_t SlotPlan::reduce_bytes(const std::vector<PlanEvent>& events) const {
  int64_t kept = 0;
  std::vector<int64_t> passing;
  for (const PageSlots& page : pages_) {
    const bool keeps = page.keeps_full_gradients;
    kept += keeps ? page.gradient_slot_bytes + kAlignment : 0;
    passing.push_back(keeps ? 0 : page.gradient_slot_bytes);
  }
  return kept + peak_reduce_bytes(events, passing);
}

int64_t SlotPlan::reduce_bytes() const {
  return is_alone_ && !updates_in_backward_ ? 0 : reduce_bytes(expected_);
}

SlotBudget SlotPlan::budget(std::optional<int64_t> budget_bytes) const {
  return {gather_bytes(budget_bytes), reduce_bytes(), budget_bytes.has_value()};
}

int64_t SlotPlan::least_gather_bytes() const {
  return pages_any_ ? capacity_without_exposed_unshards(
                          expected_, limits(0, /*has_budget=*/true))
                    : 0;
}

int64_t SlotPlan::gather_bytes(std::optional<int64_t> budget_bytes) const {
  if (!pages_any_) {
    return 0;
  }
  std::optional<int64_t> given;
  if (budget_bytes) {
    given = *budget_bytes - reduce_bytes();
  }
  const PlanLimits limits = this->limits(0, given.has_value());
  const int64_t wanted = capacity_without_exposed_unshards(expected_, limits);
  TESSERA_CHECK(
      !given || *given >= wanted,
      "the memory budget is {} bytes too small: besides shards, gradients, optimizer state and memory.activation_bytes it must hold {} bytes of unsharded parameters (the largest adjacent groups at the same time). Raise memory.device_bytes, use more ranks, or split the largest module.",
      wanted - given.value_or(0),
      wanted);
  int64_t everything = 0;
  for (const int64_t bytes : limits.group_bytes) {
    everything += bytes + kAlignment;
  }
  return std::min(given.value_or(wanted), everything);
}

} // namespace tessera::sharding

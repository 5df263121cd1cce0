// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SlotPlan` says how much memory unsharded pages and whole gradients pass
// through. Pure arithmetic, the same on every rank.

#include "tessera/runtime/memory/shard_tiers.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/plans/residency_plan.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// The slots of one rank.
struct SlotBudget {
  int64_t gather_bytes = 0; ///< of slots for unsharded pages
  int64_t reduce_bytes = 0; ///< of slots for whole gradients
  /// A budget is kept at any cost; a capacity that was computed from an
  /// expected order of use that turned out wrong grows.
  bool has_budget = false;
};

/// The pages of a model, on their tiers, as far as slots depend on them.
class SlotPlan {
 public:
  /// @param tiers per page.
  SlotPlan(
      const std::vector<PageSpec>& pages,
      const std::vector<runtime::ShardTiers>& tiers,
      const PagerOptions& options);

  /// Whether a page is unsharded into a slot; else operators use its shard.
  bool is_paged(const PageSpec& page) const {
    return paged_[static_cast<size_t>(page.number)];
  }
  /// Whether a single rank holds everything on its device, so that nothing is
  /// paged, reduced or agreed on.
  bool is_alone() const {
    return is_alone_;
  }

  /// @param capacity_bytes of the arena for unsharded pages.
  /// @param has_budget pages do not stay unsharded whatever it takes.
  PlanLimits limits(int64_t capacity_bytes, bool has_budget) const;

  /// Bytes of the arena for whole gradients.
  int64_t reduce_bytes(const std::vector<PlanEvent>& events) const;
  /// As above for the expected events; 0 if nothing passes through slots.
  int64_t reduce_bytes() const;

  /// The slots to begin with. Those for unsharded pages are as large as the
  /// ZeRO stage asks for, or take all that is in the budget, up to the size of
  /// all pages.
  /// @param budget_bytes for both kinds.
  /// @throws tessera::Error when the pages of some operator do not fit, with
  ///   the minimum needed.
  SlotBudget budget(std::optional<int64_t> budget_bytes = std::nullopt) const;
  /// The least that gather slots take.
  int64_t least_gather_bytes() const;

 private:
  int64_t gather_bytes(std::optional<int64_t> budget_bytes) const;

  /// What of a page the plan depends on.
  struct PageSlots {
    int64_t gather_slot_bytes;
    int64_t gradient_slot_bytes;
    bool keeps_full_gradients;
    bool stays_after_forward;
  };

  int prefetch_depth_;
  bool updates_in_backward_;
  std::vector<PageSlots> pages_;
  std::vector<bool> paged_;
  bool pages_any_ = false;
  bool is_alone_ = false;
  std::vector<PlanEvent> expected_; ///< order of use in a feed-forward model
};

} // namespace tessera::sharding

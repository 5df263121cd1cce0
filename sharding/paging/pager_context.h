// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagerContext` is what the parts of a pager share.

#include "tessera/sharding/pages/page_ranks.h"
#include "tessera/sharding/pages/page_table.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/pages/slot_plan.h"
#include "tessera/sharding/paging/pager_statistics.h"
#include "tessera/sharding/paging/transfer_waits.h"
#include "tessera/sharding/paging/update_scheduler.h"

#include <memory>

namespace tessera::sharding {

struct PagerContext {
  const PagerOptions options;
  const SlotPlan slots;
  PageTable pages;
  const std::unique_ptr<PageRanks> ranks;
  /// Works on shards beside forward and backward; null: nothing does.
  UpdateScheduler* const scheduler;
  const bool has_budget; ///< as SlotBudget::has_budget
  PagerStatistics statistics = {};
  TransferWaits waits = {};
  int engine_backwards = 0; ///< see EngineBackward

  /// Whether a single rank holds everything, so that nothing is paged or agreed
  /// on.
  bool is_alone() const {
    return slots.is_alone();
  }
};

/// [Note: backwards of the engine] While it is alive, a backward is that of the
/// pager's engine. Another one, of a second engine or LibTorch's alone, may
/// reach the same parameters: its gradients are collected, but not applied
/// before the step, so that zero_grad() can drop them, and are marked
/// (GradientBucket::note_other_backward), since they lack the loss scale.
class EngineBackward {
 public:
  /// @param context must outlive this object.
  explicit EngineBackward(PagerContext& context) : context_(context) {
    ++context_.engine_backwards;
  }
  ~EngineBackward() {
    --context_.engine_backwards;
  }
  EngineBackward(const EngineBackward&) = delete;
  EngineBackward& operator=(const EngineBackward&) = delete;

 private:
  PagerContext& context_;
};

} // namespace tessera::sharding

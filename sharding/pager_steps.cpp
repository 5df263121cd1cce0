// SPDX-License-Identifier: Apache-2.0
// `Pager`: transition between steps, i.e. dropping stale values, agreeing on
// plans and starting them.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>

namespace tessera::sharding {

void Pager::drop_values(const char* why) {
  for (const auto& group : groups_) {
    TESSERA_CHECK(
        group->pins == 0,
        "{}: group '{}' is held by a gather scope; end it before the {}.",
        why,
        group->name(),
        why);
  }
  leave_phase();
  settled_flags_ = at::Tensor();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!slots_.is_paged(g)) {
      settle_shard(g); // operators read it without an unshard that would wait
    }
    groups_[g]->bump_versions();
    if (groups_[g]->gradients) {
      groups_[g]->gradients->clear();
    }
  }
  // The caller has written the shards.
  gather_lane_.follow_current();
}

void Pager::start_plan() {
  if (cursor().following()) {
    for (const PlanAction& action : cursor().plan().start) {
      perform(action, /*exposed=*/false);
    }
  }
}

void Pager::invalidate() {
  drop_values("load");
  // A step in progress continues with page faults.
  if (!is_alone() && cursor().at_beginning()) {
    start_plan();
  }
}

void Pager::begin_next_step() {
  drop_values("step");
  ++statistics_.steps;
  count_arrivals();
  if (is_alone()) {
    return;
  }
  adopt_plans();
  phase_ = PlanPhase::kTrain;
  start_plan();
}

void Pager::count_arrivals() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (is_alone() && shard_user_ != nullptr) {
      groups_[g]->expected_arrivals =
          std::max(groups_[g]->expected_arrivals, groups_[g]->arrivals);
      // when alone, there are no page faults
      groups_[g]->touched_epoch = epoch_;
    }
    groups_[g]->arrivals = 0;
  }
}

void Pager::adopt_plans() {
  // [needs a plan, hash of its events] per phase, from every rank.
  std::vector<int64_t> mine;
  for (const PlanCursor& cursor : cursors_) {
    mine.push_back(cursor.needs_plan() ? 1 : 0);
    mine.push_back(static_cast<int64_t>(hash_of(cursor.events())));
  }
  const auto fields = static_cast<int64_t>(mine.size());
  const at::Tensor all = at::empty({fields * world_size()}, at::kLong);
  control()
      .all_gather(all, at::tensor(mine, at::kLong), "comparison of the plans")
      .wait(watch_failures());
  const auto* stated = all.const_data_ptr<int64_t>();

  for (size_t phase = 0; phase < cursors_.size(); ++phase) {
    PlanCursor& cursor = cursors_[phase];
    bool wanted = false;
    bool same = true;
    for (int r = 0; r < world_size(); ++r) {
      const int64_t* theirs = stated + r * fields + 2 * phase;
      wanted = wanted || theirs[0] != 0;
      same = same && theirs[1] == stated[2 * phase + 1];
    }
    if (wanted) {
      cursor.set_plan(std::nullopt);
      if (same) {
        cursor.set_plan(make_plan(cursor.events()));
      }
      if (phase == static_cast<size_t>(PlanPhase::kTrain)) {
        note_final_reductions();
      }
    }
    cursor.rewind();
  }
}

void Pager::note_final_reductions() {
  const PlanCursor& cursor = cursors_[static_cast<size_t>(PlanPhase::kTrain)];
  auto final =
      cursor.has_plan()
          ? final_reductions(cursor.plan(), options_.update_in_backward)
          : std::vector<std::optional<size_t>>{};
  final.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->final_reduction = final[g];
  }
}

} // namespace tessera::sharding

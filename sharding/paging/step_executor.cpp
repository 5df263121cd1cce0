// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/step_executor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/recompute_scope.h"
#include "tessera/sharding/paging/held_pages.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera::sharding {

void StepExecutor::on_access(
    c10::ArrayRef<PageAccess> accesses,
    const char* op_name) {
  const auto page_of = [&](const PageAccess& access) -> Page& {
    return context_.pages[access.storage->page().number];
  };
  bool current = true;
  for (const PageAccess& access : accesses) {
    const Page& page = page_of(access);
    TESSERA_CHECK(
        !access.is_write || page.pins.writable > 0 ||
            std::string_view(op_name) != "aten::embedding_renorm_",
        "parameter '{}' is sharded, and max_norm of its Embedding or EmbeddingBag writes to it in each forward: the write would be lost. Build it without max_norm and renormalize the rows after engine.step(), in a writable engine.for_each_parameter(), on every rank; or ignore its module (`ignored` in sharding.modules).",
        access.storage->parameter_name());
    TESSERA_CHECK(
        !access.is_write || page.pins.writable > 0,
        "parameter '{}' is sharded and {} writes to it in place: the write would be lost. Do it inside a scope of engine.gather() that is writable, or before wrap(); merge adapters into weights (merge_adapter() of PEFT) after engine.unwrap(); instead of an optimizer of torch, use engine.step(). A forward that writes to a parameter cannot be trained sharded: ignore its module (`ignored` in sharding.modules).",
        access.storage->parameter_name(),
        op_name);
    // Values held by a gather scope may be read on one rank alone, so this is
    // not an event of the plan that all ranks share.
    current = current && (unsharder_.is_in_use(page) || page.pins.all > 0);
  }
  if (current) {
    for (const PageAccess& access : accesses) {
      page_of(access).use_on_current_stream();
    }
    return;
  }
  std::vector<int> groups;
  for (const PageAccess& access : accesses) {
    groups.push_back(access.storage->page().number);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  touch(std::move(groups), accesses[0]);
}

void StepExecutor::touch(std::vector<int> groups, const PageAccess& cause) {
  for (const int g : groups) {
    reducer_.check_not_updated(context_.pages[g], "is used");
  }
  if (context_.is_alone()) {
    // There is nothing to unshard, but there may be updates to wait for.
    for (const int g : groups) {
      unsharder_.wait_ready(context_.pages[g]);
      unsharder_.mark_in_use(context_.pages[g]);
    }
    return;
  }
  const bool backward = in_backward();
  const bool training =
      backward || at::GradMode::is_enabled() || in_checkpointed_forward();
  enter_phase(training ? PlanPhase::kTrain : PlanPhase::kNoGrad);
  PlanCursor& cursor = planner_.cursor();
  if (cursor.at_beginning()) {
    context_.pages.check_identity();
  }
  cursor.record({PlanEvent::Kind::kTouch, groups, backward});
  unsharder_.begin_epoch(cause.storage);
  if (cursor.following()) {
    if (const auto range = cursor.advance_to_touch(groups, backward)) {
      follow(*range, /*wait_for_last=*/true);
      return;
    }
    depart();
  }
  serve(groups);
}

void StepExecutor::serve(const std::vector<int>& groups) {
  // All of the operator's pages are protected from eviction at once.
  for (const int g : groups) {
    unsharder_.mark_in_use(context_.pages[g]);
  }
  for (const int g : groups) {
    Page& page = context_.pages[g];
    if (page.residency() == Residency::kSharded) {
      unsharder_.settle_shard(page);
      unsharder_.issue_gathers();
      reducer_.agree(unsharder_.intent_to_read(page));
      unsharder_.unshard(page);
    }
    unsharder_.wait_ready(page);
  }
}

void StepExecutor::enter_phase(PlanPhase phase) {
  if (phase == planner_.phase()) {
    return;
  }
  // Inside a training step everything belongs to it, e.g. the forward of a
  // checkpointed block; the phase changes only if the step has not begun.
  if (planner_.phase() == PlanPhase::kTrain &&
      !planner_.cursor().at_beginning()) {
    return;
  }
  // Each phase has its own plan, which only ranks that enter the phase follow.
  reducer_.agree(
      {RankIntent::Kind::kForwardPhase, static_cast<int64_t>(phase), -1});
  unsharder_.reshard_all();
  planner_.set_phase(phase);
  start_plan();
}

void StepExecutor::start_plan() {
  const PlanCursor& cursor = planner_.cursor();
  if (cursor.following()) {
    for (const PlanAction& action : cursor.plan().start) {
      perform(action, /*exposed=*/false);
    }
  }
}

void StepExecutor::follow(PlanCursor::Range range, bool wait_for_last) {
  for (size_t i = range.first; i < range.last; ++i) {
    const PlanEntry& entry = planner_.cursor().entry(i);
    const bool in_use = wait_for_last && i + 1 == range.last;
    if (in_use) {
      for (const int g : entry.groups) {
        unsharder_.mark_in_use(context_.pages[g]);
      }
    }
    for (const PlanAction& action : entry.before) {
      perform(action, /*exposed=*/true, i);
    }
    // They are unsharded on all ranks, whether or not this rank waits for them.
    for (const int g : entry.groups) {
      unsharder_.issue_gathers(&context_.pages[g]);
    }
    if (in_use) {
      for (const int g : entry.groups) {
        Page& page = context_.pages[g];
        unsharder_.begin_unshard(page, Unsharder::End::kLow, /*exposed=*/true);
        unsharder_.wait_ready(page);
      }
    }
    for (const PlanAction& action : entry.after) {
      perform(action, /*exposed=*/false, i);
    }
  }
}

void StepExecutor::perform(
    const PlanAction& action,
    bool exposed,
    std::optional<size_t> entry) {
  Page& page = context_.pages[action.group];
  switch (action.kind) {
    case PlanAction::Kind::kReshard:
      unsharder_.reshard(page);
      break;
    case PlanAction::Kind::kUnshard:
      unsharder_.begin_unshard(page, action.end, exposed);
      break;
    case PlanAction::Kind::kReduce:
      reducer_.finish();
      reducer_.begin(page, planner_.is_final(action.group, entry));
      break;
  }
}

void StepExecutor::depart() {
  unsharder_.issue_gathers();
  planner_.cursor().depart();
}

void StepExecutor::on_gradient(size_t parameter) {
  if (!context_.pages.parameter(parameter).record.tensor.grad().defined()) {
    return; // a hook of the user has dropped it
  }
  reducer_.take(parameter);
  const auto& [page, position] = context_.pages.entries()[parameter];
  const bool is_own = context_.engine_backwards > 0;
  if (!is_own) {
    page.gradients->note_other_backward(position);
    page.reductions.is_other_latest = true;
  }
  // What is not applied does not count towards what is.
  const bool completes = (is_own || !context_.options.update_in_backward) &&
                         reducer_.count_arrival(page);
  if (!context_.is_alone()) {
    enter_phase(PlanPhase::kTrain);
    planner_.cursor().record(
        {PlanEvent::Kind::kArrival,
         {page.number()},
         /*in_backward=*/true});
  }
  // A backward that ended with an exception has dropped its callbacks, so each
  // backward queues its own.
  const int backward = current_backward();
  if (std::exchange(backward_to_flush_, backward) != backward) {
    call_at_backward_end([this] {
      backward_to_flush_ = -1;
      on_backward_end();
    });
  }
  if (completes) {
    reducer_.begin(page, /*is_final=*/true);
    reducer_.finish();
  }
  // Without a plan a page is reduced as soon as it is complete. Later gradients
  // are reduced again and added.
  if (!context_.is_alone() && !page.spec().keeps_full_gradients &&
      !planner_.cursor().following() && page.gradients->all_arrived()) {
    reducer_.agree({RankIntent::Kind::kReduce, page.number(), -1});
    reducer_.finish();
    if (page.gradients->is_open()) {
      reducer_.begin(page);
    }
  }
}

void StepExecutor::on_backward_end() {
  for (const auto& page : context_.pages) {
    // Other pages are packed when they are reduced.
    if (page->gradients && page->gradients->is_open() &&
        page->spec().keeps_full_gradients) {
      page->gradients->pack();
    }
  }
  if (context_.is_alone()) {
    agreement_.reduce_leftovers();
    return;
  }
  PlanCursor& cursor = planner_.cursor();
  cursor.record({PlanEvent::Kind::kBackwardEnd, {}, /*in_backward=*/true});
  if (cursor.following()) {
    if (const auto range = cursor.advance_to_backward_end()) {
      follow(*range, /*wait_for_last=*/false);
      reducer_.finish();
      return;
    }
    depart();
  }
  reducer_.agree({RankIntent::Kind::kBackwardEnd, -1, -1});
  agreement_.reduce_leftovers();
}

void StepExecutor::drop_values(const char* why) {
  check_none_held(context_.pages, why);
  unsharder_.reshard_all();
  agreement_.reset();
  for (const auto& page : context_.pages) {
    GradientBucket* const bucket = page->gradients.get();
    if (bucket != nullptr && !context_.slots.is_paged(page->spec()) &&
        bucket->frees_memory()) {
      unsharder_.settle_shard(*page); // clear() frees what the update reads
    }
    unsharder_.let_update_go_on(*page);
    if (context_.is_alone() && !page->is_under_update()) {
      unsharder_.mark_in_use(*page); // there are no page faults
    }
    page->bump_versions();
    if (bucket != nullptr) {
      bucket->clear();
    }
  }
  // The caller has written the shards.
  unsharder_.follow_writes();
}

void StepExecutor::invalidate() {
  unsharder_.settle_unpaged(); // the caller has written their shards
  drop_values("load");
  reducer_.restart_count();
  // A step in progress continues with page faults.
  if (!context_.is_alone() && planner_.cursor().at_beginning()) {
    start_plan();
  }
}

void StepExecutor::begin_next_step() {
  drop_values("step");
  ++context_.statistics.steps;
  reducer_.end_count();
  if (context_.is_alone()) {
    return;
  }
  const SlotBudget budget = planner_.adopt_plans(
      context_.slots,
      *context_.ranks,
      {unsharder_.slot_bytes(), reducer_.slot_bytes(), context_.has_budget});
  unsharder_.reserve_slots(budget.gather_bytes);
  reducer_.reserve_slots(budget.reduce_bytes);
  planner_.set_phase(PlanPhase::kTrain);
  start_plan();
}

} // namespace tessera::sharding

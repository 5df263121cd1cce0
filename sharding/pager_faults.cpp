// SPDX-License-Identifier: Apache-2.0
// `Pager`: page faults, i.e. unsharding groups as planned or on demand.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/recompute_scope.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

} // namespace

void Pager::on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name) {
  bool current = true;
  for (const PageAccess& access : accesses) {
    const PagedGroup& group = group_of(access);
    TESSERA_CHECK(
        !access.is_write || group.writable_pins > 0,
        "parameter '{}' is sharded and {} writes to it in place: the write would be lost. Do it inside engine.gather(..., writable), or before tessera::wrap; instead of a torch::optim optimizer, use Engine::step().",
        access.page->parameter_name(),
        op_name);
    // Values held by a gather scope may be read on one rank alone, so this is
    // not an event of the plan that all ranks share.
    current = current && (group.touched_epoch == epoch_ || group.pins > 0);
  }
  if (current) {
    for (const PageAccess& access : accesses) {
      access.page->group().use_on_current_stream();
    }
    return;
  }
  std::vector<int> groups;
  for (const PageAccess& access : accesses) {
    groups.push_back(access.page->group().number());
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  touch(std::move(groups), accesses[0]);
}

void Pager::touch(std::vector<int> groups, const PageAccess& cause) {
  for (const int g : groups) {
    check_not_updated(static_cast<size_t>(g), "is used");
  }
  if (is_alone()) {
    for (const int g : groups) {
      PagedGroup& group = *groups_[static_cast<size_t>(g)];
      group.touched_epoch = epoch_;
      group.use_on_current_stream();
    }
    return; // nothing to unshard
  }
  const bool backward = in_backward();
  const bool training =
      backward || at::GradMode::is_enabled() || in_checkpointed_forward();
  enter_phase(training ? PlanPhase::kTrain : PlanPhase::kNoGrad);
  if (cursor().at_beginning()) {
    check_identity();
  }
  cursor().record({PlanEvent::Kind::kTouch, groups, backward});
  ++epoch_;
  reading_ = cause.page;
  if (cursor().following()) {
    if (const auto range = cursor().advance_to_touch(groups, backward)) {
      follow(*range, /*wait_for_last=*/true);
      return;
    }
    issue_gathers();
    cursor().depart();
  }
  // All of the operator's groups are protected from eviction at once.
  for (const int g : groups) {
    groups_[static_cast<size_t>(g)]->touched_epoch = epoch_;
  }
  for (const int g : groups) {
    PagedGroup& group = *groups_[static_cast<size_t>(g)];
    group.last_use = epoch_;
    if (group.residency() == Residency::kSharded) {
      unshard_on_demand(g);
    }
    wait_ready(g);
  }
}

void Pager::enter_phase(PlanPhase phase) {
  if (phase == phase_) {
    return;
  }
  // Inside a training step everything belongs to it, e.g. the forward of a
  // checkpointed block; the phase changes only if the step has not begun.
  if (phase_ == PlanPhase::kTrain && !cursor().at_beginning()) {
    return;
  }
  // Each phase has its own plan, which only ranks that enter the phase follow.
  agree_joining_reductions(
      {RankIntent::Kind::kForwardPhase, static_cast<int64_t>(phase), -1});
  leave_phase();
  phase_ = phase;
  if (cursor().following()) {
    for (const PlanAction& action : cursor().plan().start) {
      perform(action, /*exposed=*/false);
    }
  }
}

void Pager::leave_phase() {
  if (is_alone()) {
    return;
  }
  issue_gathers();
  for (size_t g = 0; g < groups_.size(); ++g) {
    reshard(static_cast<int>(g));
  }
  ++epoch_;
}

void Pager::follow(PlanCursor::Range range, bool wait_for_last) {
  for (size_t i = range.first; i < range.last; ++i) {
    const PlanEntry& entry = cursor().entry(i);
    const bool in_use = wait_for_last && i + 1 == range.last;
    if (in_use) {
      for (const int g : entry.groups) {
        PagedGroup& group = *groups_[static_cast<size_t>(g)];
        group.touched_epoch = epoch_;
        group.last_use = epoch_;
      }
    }
    for (const PlanAction& action : entry.before) {
      perform(action, /*exposed=*/true, i);
    }
    // They are unsharded on all ranks, whether or not this rank waits for them.
    for (const int g : entry.groups) {
      issue_gathers(g);
    }
    if (in_use) {
      for (const int g : entry.groups) {
        if (groups_[static_cast<size_t>(g)]->residency() ==
            Residency::kSharded) {
          unshard_planned(
              g, runtime::OffsetAllocator::End::kLow, /*exposed=*/true);
        }
        wait_ready(g);
      }
    }
    for (const PlanAction& action : entry.after) {
      perform(action, /*exposed=*/false, i);
    }
  }
}

void Pager::perform(
    const PlanAction& action,
    bool exposed,
    std::optional<size_t> entry) {
  switch (action.kind) {
    case PlanAction::Kind::kReshard:
      reshard(action.group);
      break;
    case PlanAction::Kind::kUnshard:
      unshard_planned(action.group, action.end, exposed);
      break;
    case PlanAction::Kind::kReduce: {
      const auto g = static_cast<size_t>(action.group);
      finish_reductions();
      begin_reduce(
          g,
          entry && groups_[g]->final_reduction == entry &&
              phase_ == PlanPhase::kTrain);
      break;
    }
  }
}

void Pager::unshard_planned(
    int group_number,
    runtime::OffsetAllocator::End end,
    bool exposed) {
  const auto g = static_cast<size_t>(group_number);
  PagedGroup& group = *groups_[g];
  if (group.residency() != Residency::kSharded) {
    return;
  }
  settle_shard(g);
  runtime::Slot slot = take_gather_slot(group_number, end);
  groups_[g]->unshard_sequence = agreement_.count_collective();
  begin_unshard(group, std::move(slot));
  if (group.is_reading()) {
    reading_groups_.push_back(group_number);
  }
  ++(exposed ? statistics_.on_demand_unshards : statistics_.planned_unshards);
}

void Pager::unshard_on_demand(int group_number) {
  const auto g = static_cast<size_t>(group_number);
  settle_shard(g);
  issue_gathers();
  agree_joining_reductions(intent_to_read(group_number));
  groups_[g]->unshard_sequence = agreement_.count_collective();
  begin_unshard(*groups_[g], take_gather_slot(group_number));
  or_abandon([&] { groups_[g]->issue_unshard(); });
  ++statistics_.on_demand_unshards;
}

void Pager::begin_unshard(PagedGroup& group, runtime::Slot slot) {
  or_abandon(
      [&] { group.begin_unshard(*data_, std::move(slot), gather_lane_); });
}

void Pager::or_abandon(const std::function<void()>& use_of_stores) {
  try {
    use_of_stores();
  } catch (const Error& error) {
    abandon(error.what());
    throw;
  }
}

void Pager::issue_gathers(std::optional<int> up_to) {
  if (up_to && !groups_[static_cast<size_t>(*up_to)]->is_reading()) {
    return;
  }
  const TransferWaits::Scope waits(transfer_waits_);
  while (!reading_groups_.empty()) {
    const int next = reading_groups_.front();
    reading_groups_.pop_front();
    or_abandon([&] { groups_[static_cast<size_t>(next)]->issue_unshard(); });
    if (next == up_to) {
      return;
    }
  }
}

void Pager::wait_ready(int group_number) {
  PagedGroup& group = *groups_[static_cast<size_t>(group_number)];
  if (group.residency() == Residency::kUnsharding) {
    const TransferWaits::Scope waits(transfer_waits_);
    group.end_unshard(watch(group_number));
  } else {
    group.use_on_current_stream();
  }
}

RankIntent Pager::intent_to_read(int group_number) const {
  const auto& group = *groups_[static_cast<size_t>(group_number)];
  const size_t parameter = reading_ != nullptr && &reading_->group() == &group
                               ? find_parameter(reading_->parameter_name())
                               : group.parameters().front().index;
  return {
      RankIntent::Kind::kUnshard,
      group_number,
      static_cast<int64_t>(parameter)};
}

WaitCheck Pager::watch(int group_number) {
  return agreement_.watch(
      groups_[static_cast<size_t>(group_number)]->unshard_sequence,
      [this, group_number] { return describe(intent_to_read(group_number)); });
}

runtime::Slot Pager::take_gather_slot(
    int group_number,
    runtime::OffsetAllocator::End end) {
  const PagedGroup& wanted = *groups_[static_cast<size_t>(group_number)];
  const int64_t numel = wanted.layout().padded_numel();
  while (true) {
    runtime::Slot slot = gather_arena_.try_allocate(numel, wanted.dtype(), end);
    if (slot.defined()) {
      return slot;
    }
    // Evict the least recently used group that is not held.
    const PagedGroup* victim = nullptr;
    for (const auto& group : groups_) {
      const bool evictable =
          group->residency() == Residency::kUnsharded && group->pins == 0 &&
          group->touched_epoch != epoch_ && !group->slot_is_outside() &&
          slots_.is_paged(static_cast<size_t>(group->number()));
      if (evictable && (!victim || group->last_use < victim->last_use)) {
        victim = group.get();
      }
    }
    if (victim == nullptr) {
      if (!std::exchange(warned_outside_, true)) {
        log_warning(
            "group '{}' did not fit next to the groups in use; allocating {} bytes outside the planned gather slots",
            wanted.name(),
            wanted.spec().padded_bytes());
      }
      return gather_arena_.allocate_outside(numel, wanted.dtype());
    }
    reshard(victim->number());
  }
}

void Pager::settle_shard(size_t g) {
  if (shard_user_ == nullptr) {
    return;
  }
  const TransferWaits::Scope waits(transfer_waits_);
  const runtime::StreamMarks marks = shard_user_->before_shard_use(g);
  gather_lane_.wait_for(marks);
  marks.block_current(gather_lane_.device());
}

void Pager::reshard(int group_number) {
  PagedGroup& group = *groups_[static_cast<size_t>(group_number)];
  if (group.residency() == Residency::kSharded || group.pins > 0 ||
      !slots_.is_paged(static_cast<size_t>(group_number))) {
    return;
  }
  issue_gathers(group_number);
  group.touched_epoch = 0;
  runtime::Slot slot = group.reshard(watch(group_number));
  if (slot.defined()) {
    gather_arena_.release(slot);
  }
}

bool Pager::agree_joining_reductions(const RankIntent& intent) {
  RankConsent consent = agreement_.agree(intent);
  while (const auto reduction = consent.reduction) {
    finish_reductions();
    begin_reduce(static_cast<size_t>(*reduction));
    finish_reductions();
    if (intent.kind == RankIntent::Kind::kReduce &&
        intent.group == *reduction) {
      break;
    }
    consent = agreement_.agree(intent);
  }
  return consent.all_settled;
}

} // namespace tessera::sharding

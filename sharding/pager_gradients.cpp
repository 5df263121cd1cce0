// SPDX-License-Identifier: Apache-2.0
// `Pager`: arrival and reduction of gradients, and access to them.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/recompute_scope.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

void Pager::on_gradient(size_t parameter_index) {
  const ParameterPlace& place = places_[parameter_index];
  GradientBucket& bucket = *groups_[place.group]->gradients;
  if (!parameter(parameter_index).record.tensor.grad().defined()) {
    return; // a hook of the user has dropped it
  }
  if (bucket.is_untaken(place.position)) {
    open_bucket(place.group);
    bucket.take(place.position);
  }
  note_arrival(parameter_index);
}

void Pager::on_token_add(size_t parameter, const at::Tensor& gradient) {
  const ParameterPlace& place = places_[parameter];
  open_bucket(place.group);
  // What autograd accumulates is not written to any more; what a user adds may
  // be.
  const bool keeps = dynamic_cast<torch::autograd::AccumulateGrad*>(
                         torch::autograd::get_current_node().get()) != nullptr;
  groups_[place.group]->gradients->add(place.position, gradient, keeps);
}

void Pager::on_token_zero(size_t parameter) {
  const ParameterPlace& place = places_[parameter];
  finish_reductions();
  wait_for_reduce_lane();
  before_gradients_change(place.group);
  groups_[place.group]->gradients->zero(place.position);
}

void Pager::open_bucket(size_t g) {
  GradientBucket& bucket = *groups_[g]->gradients;
  if (bucket.reducing()) {
    finish_reductions();
  }
  if (bucket.is_open()) {
    return;
  }
  if (bucket.is_storing()) {
    finish_storing();
  }
  check_not_updated(g, "gets a gradient");
  before_gradients_change(g);
  if (is_alone() &&
      (!options_.update_in_backward || groups_[g]->expected_arrivals == 0)) {
    or_abandon([&] { bucket.open({}); });
    return;
  }
  runtime::Slot slot = take_reduce_slot(*groups_[g], bucket);
  or_abandon([&] { bucket.open(std::move(slot)); });
}

runtime::Slot Pager::take_reduce_slot(
    const PagedGroup& group,
    const GradientBucket& bucket) {
  const int64_t numel = bucket.slot_numel();
  const at::ScalarType dtype = bucket.slot_dtype();
  // Mostly one group collects while the one before it is being reduced.
  const auto end = std::exchange(
      reduce_slot_end_,
      reduce_slot_end_ == runtime::OffsetAllocator::End::kLow
          ? runtime::OffsetAllocator::End::kHigh
          : runtime::OffsetAllocator::End::kLow);
  runtime::Slot slot = reduce_arena_.try_allocate(numel, dtype, end);
  if (!slot.defined()) {
    finish_reductions();
    finish_storing();
    slot = reduce_arena_.try_allocate(numel, dtype, end);
  }
  while (!slot.defined() && !held_slots_.empty()) {
    release_held_slot();
    slot = reduce_arena_.try_allocate(numel, dtype, end);
  }
  if (!slot.defined()) {
    if (!std::exchange(warned_outside_, true)) {
      log_warning(
          "the gradients of group '{}' did not fit next to those being collected; allocating {} bytes outside the planned reduce slots",
          group.name(),
          group.spec().gradient_slot_bytes(bucket.is_stored()));
    }
    slot = reduce_arena_.allocate_outside(numel, dtype);
  }
  return slot;
}

void Pager::release_held_slot() {
  HeldSlot held = std::move(held_slots_.front());
  held_slots_.pop_front();
  const TransferWaits::Scope waits(transfer_waits_);
  held.slot.after.add(shard_user_->before_gradients_change(held.group));
  reduce_arena_.release(held.slot);
}

void Pager::before_gradients_change(size_t g) {
  if (shard_user_ != nullptr) {
    const TransferWaits::Scope waits(transfer_waits_);
    // The reduce lane follows the streams that change gradients.
    shard_user_->before_gradients_change(g).block_current(
        reduce_lane_.device());
  }
}

void Pager::note_arrival(size_t parameter) {
  const size_t g = places_[parameter].group;
  ++groups_[g]->arrivals;
  if (!is_alone()) {
    enter_phase(PlanPhase::kTrain);
    cursor().record(
        {PlanEvent::Kind::kArrival,
         {static_cast<int>(g)},
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
  if (is_alone() && groups_[g]->arrivals == groups_[g]->expected_arrivals &&
      groups_[g]->gradients->is_open()) {
    begin_reduce(g, /*is_final=*/true);
    finish_reductions();
  }
  // Without a plan a group is reduced as soon as it is complete. Later
  // gradients are reduced again and added.
  if (!is_alone() && !groups_[g]->spec().keeps_whole_gradients &&
      !cursor().following() && groups_[g]->gradients->all_arrived()) {
    agree_joining_reductions(
        {RankIntent::Kind::kReduce, static_cast<int64_t>(g), -1});
    finish_reductions();
    if (groups_[g]->gradients->is_open()) {
      begin_reduce(g);
    }
  }
}

void Pager::take_untaken(size_t g) {
  GradientBucket& bucket = *groups_[g]->gradients;
  bucket.refresh();
  for (size_t i = 0; i < groups_[g]->parameters().size(); ++i) {
    if (bucket.is_untaken(i)) {
      open_bucket(g);
      bucket.take(i);
    }
  }
}

void Pager::begin_reduce(size_t g, bool is_final) {
  GradientBucket& bucket = *groups_[g]->gradients;
  open_bucket(g);
  take_untaken(g);
  groups_[g]->reduce_sequence = agreement_.count_collective();
  // If this rank lacks a gradient, others may have it: those are applied by the
  // step, which knows.
  groups_[g]->reduction_is_final = is_final && shard_user_ != nullptr &&
                                   bucket.all_arrived() &&
                                   !groups_[g]->spec().is_apart;
  bucket.begin_reduce(
      reductions_ ? *reductions_ : *data_,
      reduce_lane_,
      groups_[g]->reduction_is_final && options_.update_in_backward);
  reducing_.push_back(g);
  ++statistics_.reductions;
}

void Pager::finish_reductions() {
  if (reducing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(transfer_waits_);
  for (const size_t g : std::exchange(reducing_, {})) {
    groups_[g]->gradients->end_reduce(
        agreement_.watch(groups_[g]->reduce_sequence, [&] {
          return describe(
              {RankIntent::Kind::kReduce, static_cast<int64_t>(g), -1});
        }));
    const bool held = groups_[g]->reduction_is_final && hand_over_gradients(g);
    groups_[g]->reduction_is_final = false;
    if (groups_[g]->gradients->is_storing()) {
      storing_.push_back(g);
    } else if (held) {
      held_slots_.push_back({g, groups_[g]->gradients->release_slot()});
    } else {
      release_reduce_slot(g);
    }
  }
}

void Pager::finish_storing() {
  if (storing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(transfer_waits_);
  for (const size_t g : std::exchange(storing_, {})) {
    release_reduce_slot(g);
  }
}

void Pager::release_reduce_slot(size_t g) {
  runtime::Slot slot;
  or_abandon([&] { slot = groups_[g]->gradients->release_slot(); });
  if (slot.defined()) {
    reduce_arena_.release(slot);
  }
}

bool Pager::hand_over_gradients(size_t g) {
  const c10::NoGradGuard no_grad;
  PagedGroup& group = *groups_[g];
  bool still_read = false;
  if (groups_[g]->gradients->applying()) {
    group.follow_users(reduce_lane_); // the update writes what they read
  }
  {
    const runtime::StreamLane::Scope on_lane(reduce_lane_);
    still_read = shard_user_->on_final_gradients(g);
  }
  if (!groups_[g]->gradients->applying()) {
    return false;
  }
  // Invalidate the old weights: a pending backward that saved them gets an
  // error, and operators have to fault the group in.
  group.bump_versions();
  reshard(group.number());
  group.touched_epoch = 0;
  return still_read;
}

bool Pager::updated_in_backward() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->gradients && group->gradients->applied();
  });
}

void Pager::check_not_updated(size_t g, const char* what) const {
  TESSERA_CHECK(
      !options_.update_in_backward || !groups_[g]->gradients ||
          !groups_[g]->gradients->applied(),
      "group '{}' {} after it was updated in backward. Call Engine::step() before the next forward or backward; if the number of them in a step varies, or their gradients may be dropped, turn off update_in_backward.",
      groups_[g]->name(),
      what);
}

void Pager::on_backward_end() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    // Other groups are packed when they are reduced.
    if (groups_[g]->gradients && groups_[g]->gradients->is_open() &&
        groups_[g]->spec().keeps_whole_gradients) {
      groups_[g]->gradients->pack();
    }
  }
  if (is_alone()) {
    reduce_leftovers(/*all=*/false);
    return;
  }
  cursor().record({PlanEvent::Kind::kBackwardEnd, {}, /*in_backward=*/true});
  if (cursor().following()) {
    if (const auto range = cursor().advance_to_backward_end()) {
      follow(*range, /*wait_for_last=*/false);
      finish_reductions();
      return;
    }
    issue_gathers();
    cursor().depart();
  }
  agree_joining_reductions({RankIntent::Kind::kBackwardEnd, -1, -1});
  reduce_leftovers(/*all=*/false);
}

at::Tensor Pager::gradient_flags(bool all) const {
  const size_t groups = groups_.size();
  const at::Tensor flags =
      at::zeros({static_cast<int64_t>(groups + places_.size())}, at::kByte);
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  for (size_t g = 0; g < groups; ++g) {
    const bool due = groups_[g]->gradients &&
                     (all || !groups_[g]->spec().keeps_whole_gradients);
    flag[g] = due && groups_[g]->gradients->any_arrived() ? 1 : 0;
  }
  for (size_t p = 0; p < places_.size(); ++p) {
    const auto& bucket = groups_[places_[p].group]->gradients;
    flag[groups + p] =
        bucket && bucket->got_gradient(places_[p].position) ? 1 : 0;
  }
  return flags;
}

bool Pager::is_settled() const {
  if (!settled_flags_.defined()) {
    return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    GradientBucket* bucket = groups_[g]->gradients.get();
    if (bucket == nullptr) {
      continue;
    }
    bucket->refresh();
    bool changed = bucket->is_open();
    for (size_t i = 0; i < groups_[g]->parameters().size(); ++i) {
      changed = changed || bucket->is_untaken(i);
    }
    if (changed) {
      return false;
    }
  }
  return at::equal(settled_flags_, gradient_flags(/*all=*/true));
}

at::Tensor Pager::reduce_leftovers(bool all) {
  finish_reductions();
  const at::Tensor flags = gradient_flags(all);
  control()
      .all_reduce_max(flags, "agreement on gradients")
      .wait(watch_failures());
  const auto* due = flags.const_data_ptr<uint8_t>();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (due[g] != 0) {
      finish_reductions();
      begin_reduce(g);
    } else if (
        groups_[g]->gradients && groups_[g]->gradients->is_open() &&
        !groups_[g]->gradients->any_arrived()) {
      // Everything in it was dropped by zero_grad().
      runtime::Slot slot = groups_[g]->gradients->close_empty();
      if (slot.defined()) {
        reduce_arena_.release(slot);
      }
    }
  }
  finish_reductions();
  finish_storing();
  return flags;
}

void Pager::settle_gradients(const RankIntent& intent) {
  check_identity();
  RankIntent stated = intent;
  stated.is_settled = is_settled();
  const bool all_settled = agree_joining_reductions(stated);
  finish_reductions();
  if (!all_settled) {
    take_all_untaken();
  }
  const TransferWaits::Scope waits(transfer_waits_);
  if (!all_settled) {
    agree_on_gradients(reduce_leftovers(/*all=*/true));
  }
  finish_storing();
  wait_for_reduce_lane();
}

void Pager::take_all_untaken() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->gradients == nullptr) {
      for (const auto& frozen : groups_[g]->parameters()) {
        TESSERA_CHECK(
            !frozen.record.tensor.grad().defined(),
            "parameter '{}' was frozen when the module was wrapped, but has a gradient now. Set requires_grad before tessera::wrap.",
            frozen.record.name());
      }
      continue;
    }
    take_untaken(g);
  }
}

void Pager::agree_on_gradients(const at::Tensor& flags) {
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  std::fill_n(flag, groups_.size(), uint8_t{0}); // these are reduced now
  for (size_t p = 0; p < places_.size(); ++p) {
    if (const auto& bucket = groups_[places_[p].group]->gradients) {
      bucket->set_has_gradient(
          places_[p].position, flag[groups_.size() + p] != 0);
    }
  }
  settled_flags_ = flags;
  ++statistics_.gradient_agreements;
}

void Pager::multiply_gradients(const DeferredScalar& factor) {
  for (const auto& group : groups_) {
    if (group->gradients) {
      group->gradients->multiply(factor);
    }
  }
}

void Pager::add_gradient(size_t index, const at::Tensor& gradient) {
  const ParameterPlace& place = places_[index];
  TESSERA_CHECK(
      groups_[place.group]->gradients != nullptr,
      "parameter '{}' is frozen and takes no gradient.",
      parameter(index).record.name());
  agree_joining_reductions(
      {RankIntent::Kind::kAddGradient,
       static_cast<int64_t>(place.group),
       static_cast<int64_t>(index)});
  take_untaken(place.group);
  on_token_add(index, gradient);
}

bool Pager::any_gradient() const {
  for (const ParameterPlace& place : places_) {
    const auto& bucket = groups_[place.group]->gradients;
    if (bucket && bucket->got_gradient(place.position)) {
      return true;
    }
  }
  return false;
}

at::Tensor Pager::whole_gradient(size_t index) {
  const ParameterPlace& place = places_[index];
  const auto& bucket = groups_[place.group]->gradients;
  if (!bucket || !bucket->has_gradient(place.position)) {
    return {};
  }
  const PagedParameter& wanted = parameter(index);
  const PagedGroup& group = *groups_[place.group];
  settle_shard(place.group); // readers of the gradients have finished too
  const at::Tensor shard = bucket->shard().load(group.device());
  if (!is_divided()) {
    return group.view_of(shard, place.position).mul(bucket->factor());
  }
  const at::Tensor whole =
      at::empty({group.layout().padded_numel()}, shard.options());
  data_->all_gather(whole, shard, "gradient of '" + wanted.record.name() + "'")
      .wait(watch_failures());
  return group.view_of(whole, place.position).mul(bucket->factor());
}

} // namespace tessera::sharding

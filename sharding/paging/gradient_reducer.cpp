// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gradient_reducer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/dry_run/dry_run.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

GradientReducer::GradientReducer(
    PagerContext& context,
    Unsharder& unsharder,
    c10::Device device,
    MemoryLedger& ledger)
    : context_(context),
      unsharder_(unsharder),
      lane_(device),
      updates_(device, runtime::LanePriority::kLow),
      // In forward and in the loss, where memory peaks, gradients have no use
      // for theirs. CUDA's allocator may not find as much in one piece again.
      arena_(
          ledger,
          MemoryPurpose::kReduceSlots,
          device,
          runtime::computes_on_cpu(device)
              ? runtime::SlotArena::Memory::kEachSlot
              : runtime::SlotArena::Memory::kOneBuffer) {}

void GradientReducer::reserve_slots(int64_t bytes) {
  if (bytes <= arena_.capacity_bytes()) {
    return;
  }
  while (!held_slots_.empty()) {
    release_held_slot();
  }
  arena_.resize(bytes);
}

void GradientReducer::wait_before_memory_is_freed() const noexcept {
  runtime::StreamSet homes = arena_.homes();
  for (const auto& page : context_.pages.pages()) {
    if (page->gradients && page->gradients->allocated_on()) {
      homes.insert(*page->gradients->allocated_on());
    }
  }
  lane_.wait_before_memory_is_freed(homes);
}

bool GradientReducer::agree(const RankIntent& intent) {
  RankAgreement& agreement = context_.ranks->agreement();
  RankConsent consent = agreement.agree(intent);
  while (const auto reduction = consent.reduction) {
    finish();
    begin(static_cast<size_t>(*reduction));
    finish();
    if (intent.kind == RankIntent::Kind::kReduce &&
        intent.group == *reduction) {
      break;
    }
    consent = agreement.agree(intent);
  }
  return consent.all_settled;
}

void GradientReducer::take(size_t parameter) {
  const ParameterPlace& place = context_.pages.places()[parameter];
  GradientBucket& bucket = *context_.pages.bucket(place.group);
  if (bucket.is_untaken(place.position)) {
    open(place.group);
    bucket.take(place.position);
  }
}

void GradientReducer::take_untaken(size_t g) {
  PagedGroup& page = context_.pages[g];
  page.gradients->refresh();
  for (size_t i = 0; i < page.parameters().size(); ++i) {
    if (page.gradients->is_untaken(i)) {
      open(g);
      page.gradients->take(i);
    }
  }
}

void GradientReducer::add(size_t parameter, const at::Tensor& gradient) {
  const ParameterPlace& place = context_.pages.places()[parameter];
  open(place.group);
  // What a user adds may be written to later.
  const bool keeps = dynamic_cast<torch::autograd::AccumulateGrad*>(
                         torch::autograd::get_current_node().get()) != nullptr;
  context_.pages.bucket(place.group)->add(place.position, gradient, keeps);
}

void GradientReducer::zero(size_t parameter) {
  const ParameterPlace& place = context_.pages.places()[parameter];
  finish();
  check_not_updated(place.group, "gets its gradients set to zero");
  wait_for_lane();
  before_change(place.group);
  context_.pages.bucket(place.group)->zero(place.position);
}

void GradientReducer::open(size_t g) {
  GradientBucket& bucket = *context_.pages.bucket(g);
  if (bucket.is_reducing()) {
    finish();
  }
  if (bucket.is_open()) {
    return;
  }
  if (bucket.is_storing()) {
    finish_storing();
  }
  check_not_updated(g, "gets a gradient");
  before_change(g);
  runtime::Slot slot;
  if (!context_.is_alone() ||
      (context_.options.update_in_backward &&
       context_.pages[g].reductions.expected_arrivals > 0)) {
    slot = take_slot(g);
  } // else the shard collects them
  context_.ranks->or_abandon([&] { bucket.open(std::move(slot)); });
}

runtime::Slot GradientReducer::take_slot(size_t g) {
  const GradientBucket& bucket = *context_.pages.bucket(g);
  const int64_t numel = bucket.slot_numel();
  const at::ScalarType dtype = bucket.slot_dtype();
  // Mostly one page collects while the one before it is being reduced.
  const auto end = std::exchange(
      next_end_,
      next_end_ == runtime::OffsetAllocator::End::kLow
          ? runtime::OffsetAllocator::End::kHigh
          : runtime::OffsetAllocator::End::kLow);
  if (waits_for_reduction()) {
    // As peak_reduce_bytes() counts: a small slot that stayed would lie between
    // the one that is taken now and a later, larger one.
    finish();
  }
  runtime::Slot slot = arena_.try_allocate(numel, dtype, end);
  if (!slot.defined()) {
    finish();
    finish_storing();
    slot = arena_.try_allocate(numel, dtype, end);
  }
  while (!slot.defined() && !held_slots_.empty()) {
    release_held_slot();
    slot = arena_.try_allocate(numel, dtype, end);
  }
  if (!slot.defined()) {
    if (!std::exchange(warned_outside_, true)) {
      const PagedGroup& page = context_.pages[g];
      log_warning(
          "the gradients of group '{}' did not fit next to those being collected; allocating {} bytes outside the planned reduce slots",
          page.name(),
          page.spec().gradient_slot_bytes(bucket.is_stored()));
    }
    slot = arena_.allocate_outside(numel, dtype);
  }
  return slot;
}

bool GradientReducer::waits_for_reduction() const {
  return std::any_of(
      context_.pages.pages().begin(),
      context_.pages.pages().end(),
      [](const auto& page) {
        return page->gradients && page->gradients->is_open() &&
               !page->gradients->is_reducing() &&
               page->gradients->all_arrived();
      });
}

void GradientReducer::release_held_slot() {
  HeldSlot held = std::move(held_slots_.front());
  held_slots_.pop_front();
  const TransferWaits::Scope waits(context_.waits);
  held.slot.after.add(context_.scheduler->before_gradients_change(held.group));
  arena_.release(held.slot);
}

void GradientReducer::before_change(size_t g) {
  if (context_.scheduler != nullptr) {
    const TransferWaits::Scope waits(context_.waits);
    // The lane follows the streams that change gradients.
    context_.scheduler->before_gradients_change(g).block_current(
        lane_.device());
  }
}

bool GradientReducer::count_arrival(size_t g) {
  PageReductions& reductions = context_.pages[g].reductions;
  ++reductions.arrivals;
  reductions.is_other_latest = false;
  return context_.is_alone() &&
         reductions.arrivals == reductions.expected_arrivals &&
         context_.pages.bucket(g)->is_open();
}

void GradientReducer::end_count() {
  if (context_.is_alone() && context_.scheduler != nullptr) {
    for (const auto& page : context_.pages.pages()) {
      PageReductions& reductions = page->reductions;
      const int expected =
          std::max(reductions.expected_arrivals, reductions.arrivals);
      // An update as soon as its own are complete would come before the other.
      reductions.collects =
          reductions.collects || (reductions.is_other_latest && expected > 0 &&
                                  reductions.arrivals == expected);
      reductions.expected_arrivals = reductions.collects ? 0 : expected;
    }
  }
  restart_count();
}

void GradientReducer::restart_count() {
  for (const auto& page : context_.pages.pages()) {
    page->reductions.arrivals = 0;
    page->reductions.is_other_latest = false;
  }
}

void GradientReducer::begin(size_t g, bool is_final) {
  PagedGroup& page = context_.pages[g];
  open(g);
  take_untaken(g);
  page.reductions.sequence = context_.ranks->agreement().count_collective();
  // If this rank lacks a gradient, others may have it: those are applied by the
  // step, which knows.
  const bool may_apply =
      context_.own_backwards > 0 || !context_.options.update_in_backward;
  page.reductions.is_final =
      is_final && may_apply && context_.scheduler != nullptr &&
      page.gradients->all_arrived() && !page.spec().is_apart;
  page.gradients->begin_reduce(
      page.ranks.reductions(),
      lane_,
      page.reductions.is_final && context_.options.update_in_backward);
  reducing_.push_back(g);
  ++context_.statistics.reductions;
}

void GradientReducer::finish() {
  if (reducing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  for (const size_t g : std::exchange(reducing_, {})) {
    PagedGroup& page = context_.pages[g];
    page.gradients->end_reduce(
        context_.ranks->agreement().watch(page.reductions.sequence, [&] {
          return context_.ranks->describe(
              {RankIntent::Kind::kReduce, static_cast<int64_t>(g), -1});
        }));
    const bool held = page.reductions.is_final && hand_over(g);
    page.reductions.is_final = false;
    if (page.gradients->is_storing()) {
      storing_.push_back(g);
    } else if (held) {
      held_slots_.push_back({g, page.gradients->release_slot()});
    } else {
      release_slot(g);
    }
  }
}

void GradientReducer::finish_storing() {
  if (storing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  for (const size_t g : std::exchange(storing_, {})) {
    release_slot(g);
  }
}

void GradientReducer::release_slot(size_t g) {
  runtime::Slot slot;
  context_.ranks->or_abandon(
      [&] { slot = context_.pages.bucket(g)->release_slot(); });
  if (slot.defined()) {
    arena_.release(slot);
  }
}

void GradientReducer::close_if_empty(size_t g) {
  GradientBucket* bucket = context_.pages.bucket(g);
  if (bucket == nullptr || !bucket->is_open() || bucket->any_arrived()) {
    return;
  }
  runtime::Slot slot = bucket->close_empty();
  if (slot.defined()) {
    arena_.release(slot);
  }
}

bool GradientReducer::hand_over(size_t g) {
  const c10::NoGradGuard no_grad;
  PagedGroup& page = context_.pages[g];
  if (!page.gradients->is_applying()) {
    const runtime::StreamLane::Scope on_lane(lane_);
    context_.scheduler->on_final_gradients(g);
    return false;
  }
  // Invalidate the old weights: a pending backward that saved them gets an
  // error, and operators have to fault the page in.
  page.bump_versions();
  unsharder_.drop(g);
  page.follow_users(updates_); // the update writes what they read
  updates_.wait_for(lane_.mark());
  bool still_read = false;
  {
    const runtime::StreamLane::Scope on_lane(updates_);
    still_read = context_.scheduler->on_final_gradients(g);
  }
  unsharder_.let_update_go_on(g);
  lane_.wait_for(updates_.mark()); // slots are free in its order
  return still_read;
}

bool GradientReducer::updated_in_backward() const {
  const auto& pages = context_.pages.pages();
  return std::any_of(pages.begin(), pages.end(), [](const auto& page) {
    return page->gradients && page->gradients->is_applied();
  });
}

void GradientReducer::check_not_updated(size_t g, const char* what) const {
  const PagedGroup& page = context_.pages[g];
  TESSERA_CHECK(
      !context_.options.update_in_backward || !page.gradients ||
          !page.gradients->is_applied(),
      "group '{}' {} after it was updated in backward. Call engine.step() before the next forward or backward; if the number of them in a step varies, or their gradients may be dropped, turn off update_in_backward.",
      page.name(),
      what);
}

} // namespace tessera::sharding

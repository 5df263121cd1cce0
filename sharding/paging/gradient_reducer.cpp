// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gradient_reducer.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/interception/gradient_hook.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

/// Whether the ranks of all pipeline stages state such an intent together.
bool is_of_all_stages(RankIntent::Kind kind) {
  return kind == RankIntent::Kind::kStep || kind == RankIntent::Kind::kClip ||
         kind == RankIntent::Kind::kFiles || kind == RankIntent::Kind::kUnwrap;
}

} // namespace

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
  for (const auto& page : context_.pages) {
    if (page->gradients && page->gradients->allocated_on()) {
      homes.insert(*page->gradients->allocated_on());
    }
  }
  lane_.wait_before_memory_is_freed(homes);
}

bool GradientReducer::agree(const RankIntent& intent) {
  // In a step, pipeline stages are at other places of it.
  const bool on_all_stages = is_of_all_stages(intent.kind);
  const WrittenValues& written = context_.ranks->written();
  if (on_all_stages || !(written.on_all_stages || written.of_copies) ||
      context_.ranks->model().size(kPipelineAxis) == 1) {
    check_written(on_all_stages);
  }
  return state(intent);
}

void GradientReducer::check_written(bool on_all_stages) {
  PageRanks& ranks = *context_.ranks;
  const WrittenValues written = std::exchange(ranks.written(), {});
  if (!written.is_pending) {
    return;
  }
  const bool has_stages = ranks.model().size(kPipelineAxis) > 1;
  const bool tells_all = written.on_all_stages && on_all_stages;
  if (written.on_all_stages && !tells_all && has_stages) {
    // The other stages wait for this one where all of them agree.
    ranks.written().is_pending = ranks.written().on_all_stages = true;
  }
  std::string problem;
  if (!written.values.empty() || !written.experts.empty()) {
    auto difference = compare(written.values);
    if (!difference && !written.experts.empty()) {
      difference = ranks.find_difference_of_experts(written.experts);
    }
    if (difference) {
      problem = formatted(
          "gather() or for_each_parameter(): {} have written other values to {}; each rank's part of it is now as this rank wrote it. Write the same values on every rank, or what one rank alone has with load_weights(), and load a checkpoint to go on.",
          difference->ranks,
          difference->parameters);
    }
  }
  if (const std::string copies = find_other_copies(written); !copies.empty()) {
    problem = formatted(
        "gather() or for_each_parameter(): pipeline stages have written other values to {}, of which each of them has a copy: it is one parameter. Write the same values on every stage that has it, and load a checkpoint to go on.",
        copies);
  }
  problem = ranks.first_over_parts(
      problem, tells_all ? PageRanks::Stages::kAll : PageRanks::Stages::kOne);
  if (!problem.empty() && !tells_all && has_stages) {
    ranks.agreement().report(problem); // the other stages would wait for these
  }
  TESSERA_CHECK(problem.empty(), "{}", problem);
}

std::string GradientReducer::find_other_copies(const WrittenValues& written) {
  std::vector<const Page*> pages; // in an order that is that of all stages
  for (const auto& page : context_.pages) {
    if (page->ranks.copies() != nullptr &&
        written.values.contains(page->parameters().front().record.name())) {
      pages.push_back(page.get());
    }
  }
  std::sort(pages.begin(), pages.end(), [](const auto* a, const auto* b) {
    return a->spec().tied_name < b->spec().tied_name;
  });
  std::string names;
  for (const Page* page : pages) {
    const std::string& name = page->spec().tied_name;
    const ValueHashes values =
        written.values.of(page->parameters().front().record.name());
    if (!runtime::are_equal(
            *page->ranks.copies_control(),
            values.to_text(),
            "comparison of what all pipeline stages that have '" + name +
                "' have written to it",
            context_.ranks->watch_failures())) {
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
  }
  return names;
}

std::optional<ValueDifference> GradientReducer::compare(
    const ValueHashes& values) {
  try {
    state({RankIntent::Kind::kCompareValues, values.hash(), -1});
  } catch (const OtherSettingsError&) {
    return context_.ranks->find_difference(values);
  }
  return std::nullopt;
}

bool GradientReducer::state(const RankIntent& intent) {
  RankAgreement& agreement = context_.ranks->agreement();
  RankConsent consent = agreement.agree(intent);
  while (const auto reduction = consent.reduction) {
    finish();
    begin(context_.pages[static_cast<size_t>(*reduction)]);
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
  const ParameterEntry& entry = context_.pages.entries()[parameter];
  GradientBucket& bucket = *entry.page.gradients;
  if (bucket.is_pending(entry.position)) {
    open(entry.page);
    bucket.take(entry.position);
  }
}

void GradientReducer::collect_pending(Page& page) {
  page.gradients->refresh();
  for (size_t i = 0; i < page.parameters().size(); ++i) {
    if (page.gradients->is_pending(i)) {
      open(page);
      page.gradients->take(i);
      // While the engine's own backward runs, a hook of the user may have
      // replaced what it has computed.
      if (context_.engine_backwards == 0 &&
          has_gradient_hook(page.parameters()[i].record.tensor)) {
        page.gradients->note_other_backward(i); // set by hand
      }
    }
  }
}

void GradientReducer::add(size_t parameter, const at::Tensor& gradient) {
  const ParameterEntry& entry = context_.pages.entries()[parameter];
  open(entry.page);
  // What a user adds may be written to later.
  const bool keeps = dynamic_cast<torch::autograd::AccumulateGrad*>(
                         torch::autograd::get_current_node().get()) != nullptr;
  entry.page.gradients->add(entry.position, gradient, keeps);
}

void GradientReducer::zero(size_t parameter) {
  const ParameterEntry& entry = context_.pages.entries()[parameter];
  finish();
  check_not_updated(entry.page, "gets its gradients set to zero");
  wait_for_lane();
  before_change(entry.page);
  entry.page.gradients->zero(entry.position);
}

void GradientReducer::open(Page& page) {
  GradientBucket& bucket = *page.gradients;
  if (bucket.is_reducing()) {
    finish();
  }
  if (bucket.is_open()) {
    return;
  }
  if (bucket.is_storing()) {
    finish_storing();
  }
  check_not_updated(page, "gets a gradient");
  before_change(page);
  runtime::Slot slot;
  if (!context_.is_alone() || (context_.options.update_in_backward &&
                               page.reductions.expected_arrivals > 0)) {
    slot = take_slot(page);
  } // else the shard collects them
  context_.ranks->run_or_abandon([&] { bucket.open(std::move(slot)); });
}

runtime::Slot GradientReducer::take_slot(const Page& page) {
  const GradientBucket& bucket = *page.gradients;
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
      context_.pages.begin(), context_.pages.end(), [](const auto& page) {
        return page->gradients && page->gradients->is_open() &&
               !page->gradients->is_reducing() &&
               page->gradients->all_arrived();
      });
}

void GradientReducer::release_held_slot() {
  HeldSlot held = std::move(held_slots_.front());
  held_slots_.pop_front();
  const TransferWaits::Scope waits(context_.waits);
  held.slot.after.add(context_.scheduler->before_gradients_change(*held.page));
  arena_.release(held.slot);
}

void GradientReducer::before_change(const Page& page) {
  if (context_.scheduler != nullptr) {
    const TransferWaits::Scope waits(context_.waits);
    // The lane follows the streams that change gradients.
    context_.scheduler->before_gradients_change(page).block_current(
        lane_.device());
  }
}

bool GradientReducer::count_arrival(Page& page) {
  PageReductions& reductions = page.reductions;
  ++reductions.arrivals;
  reductions.is_other_latest = false;
  return context_.is_alone() &&
         reductions.arrivals == reductions.expected_arrivals &&
         page.gradients->is_open();
}

void GradientReducer::end_count() {
  if (context_.is_alone() && context_.scheduler != nullptr) {
    for (const auto& page : context_.pages) {
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
  for (const auto& page : context_.pages) {
    page->reductions.arrivals = 0;
    page->reductions.is_other_latest = false;
  }
}

void GradientReducer::begin(Page& page, bool is_final) {
  open(page);
  collect_pending(page);
  page.reductions.sequence = context_.ranks->agreement().count_collective();
  // If this rank lacks a gradient, others may have it: those are applied by the
  // step, which knows.
  const bool may_apply =
      context_.engine_backwards > 0 || !context_.options.update_in_backward;
  page.reductions.is_final =
      is_final && may_apply && context_.scheduler != nullptr &&
      page.gradients->all_arrived() && !page.spec().is_apart;
  page.gradients->begin_reduce(
      page.ranks.reductions(),
      lane_,
      page.reductions.is_final && context_.options.update_in_backward);
  reducing_.push_back(&page);
  ++context_.statistics.reductions;
}

void GradientReducer::finish() {
  if (reducing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  for (Page* const next : std::exchange(reducing_, {})) {
    Page& page = *next;
    page.gradients->end_reduce(
        context_.ranks->agreement().watch(page.reductions.sequence, [&] {
          return context_.ranks->describe(
              {RankIntent::Kind::kReduce, page.number(), -1});
        }));
    const bool held = page.reductions.is_final && hand_over(page);
    page.reductions.is_final = false;
    if (page.gradients->is_storing()) {
      storing_.push_back(&page);
    } else if (held) {
      held_slots_.push_back({&page, page.gradients->release_slot()});
    } else {
      release_slot(page);
    }
  }
}

void GradientReducer::finish_storing() {
  if (storing_.empty()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  for (Page* const page : std::exchange(storing_, {})) {
    release_slot(*page);
  }
}

void GradientReducer::release_slot(Page& page) {
  runtime::Slot slot;
  context_.ranks->run_or_abandon(
      [&] { slot = page.gradients->release_slot(); });
  if (slot.defined()) {
    arena_.release(slot);
  }
}

void GradientReducer::close_if_empty(Page& page) {
  GradientBucket* const bucket = page.gradients.get();
  if (bucket == nullptr || !bucket->is_open() || bucket->any_arrived()) {
    return;
  }
  runtime::Slot slot = bucket->close_empty();
  if (slot.defined()) {
    arena_.release(slot);
  }
}

bool GradientReducer::hand_over(Page& page) {
  const c10::NoGradGuard no_grad;
  if (!page.gradients->is_applying()) {
    const runtime::StreamLane::Scope on_lane(lane_);
    context_.scheduler->on_final_gradients(page);
    return false;
  }
  // Invalidate the old weights: a pending backward that saved them gets an
  // error, and operators have to fault the page in.
  page.bump_versions();
  unsharder_.drop(page);
  page.follow_users(updates_); // the update writes what they read
  updates_.wait_for(lane_.mark());
  bool still_read = false;
  {
    const runtime::StreamLane::Scope on_lane(updates_);
    still_read = context_.scheduler->on_final_gradients(page);
  }
  unsharder_.let_update_go_on(page);
  lane_.wait_for(updates_.mark()); // slots are free in its order
  return still_read;
}

void GradientReducer::check_not_updated(const Page& page, const char* label)
    const {
  TESSERA_CHECK(
      !context_.options.update_in_backward || !page.gradients ||
          !page.gradients->is_applied(),
      "group '{}' {} after it was updated in backward. Call engine.step() before the next forward or backward; if the number of them in a step varies, or their gradients may be dropped, turn off update_in_backward.",
      page.name(),
      label);
}

} // namespace tessera::sharding

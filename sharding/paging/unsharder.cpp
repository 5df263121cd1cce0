// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/unsharder.h"

#include "tessera/runtime/core/log.h"

#include <utility>

namespace tessera::sharding {

Unsharder::Unsharder(
    PagerContext& context,
    c10::Device device,
    MemoryLedger& ledger)
    : context_(context),
      lane_(device),
      arena_(ledger, MemoryPurpose::kGatherSlots, device) {}

void Unsharder::reserve_slots(int64_t bytes) {
  if (bytes > arena_.capacity_bytes()) {
    arena_.resize(bytes);
  }
}

void Unsharder::wait_before_memory_is_freed() const noexcept {
  lane_.wait_before_memory_is_freed(arena_.homes());
}

void Unsharder::begin_unshard(Page& page, End end, bool exposed) {
  if (page.residency() != Residency::kSharded) {
    return;
  }
  settle_shard(page);
  runtime::Slot slot = take_slot(page, end);
  page.use.unshard_sequence = context_.ranks->agreement().count_collective();
  begin(page, std::move(slot));
  if (page.is_reading()) {
    reading_.push_back(&page);
  }
  PagerStatistics& statistics = context_.statistics;
  ++(exposed ? statistics.on_demand_unshards : statistics.planned_unshards);
}

void Unsharder::unshard(Page& page) {
  page.use.unshard_sequence = context_.ranks->agreement().count_collective();
  begin(page, take_slot(page));
  context_.ranks->run_or_abandon([&] { page.issue_unshard(); });
  ++context_.statistics.on_demand_unshards;
}

void Unsharder::unshard_outside(Page& page) {
  const int64_t numel = page.spec().resting_format
                            ? page.spec().gather_slot_numel()
                            : page.layout().padded_numel();
  begin(
      page, arena_.allocate_outside(numel, page.dtype()), GatherFormat::kExact);
  context_.ranks->run_or_abandon([&] { page.issue_unshard(); });
  page.end_unshard(context_.ranks->watch_failures());
}

void Unsharder::begin(Page& page, runtime::Slot slot, GatherFormat format) {
  context_.ranks->run_or_abandon([&] {
    page.begin_unshard(page.ranks.shards(), std::move(slot), lane_, format);
  });
}

void Unsharder::issue_gathers(const Page* up_to) {
  if (up_to != nullptr && !up_to->is_reading()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  while (!reading_.empty()) {
    Page* const next = reading_.front();
    reading_.pop_front();
    context_.ranks->run_or_abandon([&] { next->issue_unshard(); });
    if (next == up_to) {
      return;
    }
  }
}

void Unsharder::wait_ready(Page& page) {
  if (page.residency() == Residency::kUnsharding) {
    const TransferWaits::Scope waits(context_.waits);
    page.end_unshard(watch(page));
  } else {
    if (page.is_under_update()) {
      settle_shard(page);
    }
    page.use_on_current_stream();
  }
}

RankIntent Unsharder::intent_to_read(const Page& page) const {
  const size_t parameter =
      cause_ != nullptr && cause_->page().number == page.number()
          ? context_.pages.find(cause_->parameter_name())
          : page.parameters().front().index;
  return {
      RankIntent::Kind::kUnshard,
      page.number(),
      static_cast<int64_t>(parameter)};
}

WaitCheck Unsharder::watch(const Page& page) {
  return context_.ranks->agreement().watch(
      page.use.unshard_sequence,
      [this, &page] { return context_.ranks->describe(intent_to_read(page)); });
}

runtime::Slot Unsharder::take_slot(const Page& wanted, End end) {
  const int64_t numel = wanted.spec().gather_slot_numel();
  while (true) {
    runtime::Slot slot = arena_.try_allocate(numel, wanted.dtype(), end);
    if (slot.defined()) {
      return slot;
    }
    Page* const victim = least_recently_used();
    if (victim == nullptr) {
      if (!std::exchange(warned_outside_, true)) {
        log_warning(
            "group '{}' did not fit next to the groups in use; allocating {} bytes outside the planned gather slots",
            wanted.name(),
            wanted.spec().gather_slot_bytes());
      }
      return arena_.allocate_outside(numel, wanted.dtype());
    }
    reshard(*victim);
  }
}

/// The page that may be evicted, or null.
Page* Unsharder::least_recently_used() const {
  Page* victim = nullptr;
  for (const auto& page : context_.pages) {
    const bool evictable = page->residency() == Residency::kUnsharded &&
                           page->pins.all == 0 && !is_in_use(*page) &&
                           !page->slot_is_outside() &&
                           context_.slots.is_paged(page->spec());
    if (evictable &&
        (victim == nullptr || page->use.last_epoch < victim->use.last_epoch)) {
      victim = page.get();
    }
  }
  return victim;
}

void Unsharder::settle_shard(Page& page) {
  if (context_.scheduler == nullptr) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  const runtime::StreamMarks marks = context_.scheduler->before_shard_use(page);
  lane_.wait_for(marks);
  marks.block_current(lane_.device());
  if (page.is_under_update()) {
    page.end_update(marks);
  }
}

void Unsharder::settle_unpaged() {
  for (const auto& page : context_.pages) {
    if (!context_.slots.is_paged(page->spec())) {
      settle_shard(*page);
    }
  }
}

void Unsharder::let_update_go_on(Page& page) {
  if (context_.slots.is_paged(page.spec()) || context_.scheduler == nullptr ||
      !context_.scheduler->is_updating(page)) {
    return;
  }
  page.use.epoch = 0; // operators come to wait_ready()
  page.begin_update();
}

void Unsharder::reshard(Page& page) {
  if (page.residency() == Residency::kSharded || page.pins.all > 0 ||
      !context_.slots.is_paged(page.spec())) {
    return;
  }
  issue_gathers(&page);
  page.use.epoch = 0;
  runtime::Slot slot = page.reshard(watch(page));
  if (slot.defined()) {
    arena_.release(slot);
  }
}

void Unsharder::drop(Page& page) {
  reshard(page);
  page.use.epoch = 0;
}

void Unsharder::reshard_all() {
  if (context_.is_alone()) {
    return;
  }
  issue_gathers();
  for (const auto& page : context_.pages) {
    reshard(*page);
  }
  ++epoch_;
}

void Unsharder::restore(Page& page, const at::Tensor& full) {
  cause_ = nullptr; // a page that is no longer paged
  runtime::Slot slot = page.restore(full, context_.ranks->watch_failures());
  if (slot.defined()) {
    arena_.release(slot);
  }
}

} // namespace tessera::sharding

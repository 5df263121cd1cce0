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

void Unsharder::begin_unshard(size_t g, End end, bool exposed) {
  PagedGroup& page = context_.pages[g];
  if (page.residency() != Residency::kSharded) {
    return;
  }
  settle_shard(g);
  runtime::Slot slot = take_slot(page, end);
  page.use.unshard_sequence = context_.ranks->agreement().count_collective();
  begin(page, std::move(slot));
  if (page.is_reading()) {
    reading_.push_back(g);
  }
  PagerStatistics& statistics = context_.statistics;
  ++(exposed ? statistics.on_demand_unshards : statistics.planned_unshards);
}

void Unsharder::unshard(size_t g) {
  PagedGroup& page = context_.pages[g];
  page.use.unshard_sequence = context_.ranks->agreement().count_collective();
  begin(page, take_slot(page));
  context_.ranks->or_abandon([&] { page.issue_unshard(); });
  ++context_.statistics.on_demand_unshards;
}

void Unsharder::unshard_outside(size_t g) {
  PagedGroup& page = context_.pages[g];
  begin(
      page,
      arena_.allocate_outside(page.layout().padded_numel(), page.dtype()),
      GatherFormat::kExact);
  context_.ranks->or_abandon([&] { page.issue_unshard(); });
  page.end_unshard(context_.ranks->watch_failures());
}

void Unsharder::begin(
    PagedGroup& page,
    runtime::Slot slot,
    GatherFormat format) {
  context_.ranks->or_abandon([&] {
    page.begin_unshard(page.ranks.shards(), std::move(slot), lane_, format);
  });
}

void Unsharder::issue_gathers(std::optional<size_t> up_to) {
  if (up_to && !context_.pages[*up_to].is_reading()) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  while (!reading_.empty()) {
    const size_t next = reading_.front();
    reading_.pop_front();
    context_.ranks->or_abandon([&] { context_.pages[next].issue_unshard(); });
    if (next == up_to) {
      return;
    }
  }
}

void Unsharder::wait_ready(size_t g) {
  PagedGroup& page = context_.pages[g];
  if (page.residency() == Residency::kUnsharding) {
    const TransferWaits::Scope waits(context_.waits);
    page.end_unshard(watch(page));
  } else {
    if (page.is_under_update()) {
      settle_shard(g);
    }
    page.use_on_current_stream();
  }
}

RankIntent Unsharder::intent_to_read(size_t g) const {
  const PagedGroup& page = context_.pages[g];
  const size_t parameter =
      cause_ != nullptr && cause_->page().number == page.number()
          ? context_.pages.find(cause_->parameter_name())
          : page.parameters().front().index;
  return {
      RankIntent::Kind::kUnshard,
      static_cast<int64_t>(g),
      static_cast<int64_t>(parameter)};
}

WaitCheck Unsharder::watch(const PagedGroup& page) {
  const auto g = static_cast<size_t>(page.number());
  return context_.ranks->agreement().watch(
      page.use.unshard_sequence,
      [this, g] { return context_.ranks->describe(intent_to_read(g)); });
}

runtime::Slot Unsharder::take_slot(const PagedGroup& wanted, End end) {
  const int64_t numel = wanted.spec().gather_slot_numel();
  while (true) {
    runtime::Slot slot = arena_.try_allocate(numel, wanted.dtype(), end);
    if (slot.defined()) {
      return slot;
    }
    const PagedGroup* victim = least_recently_used();
    if (victim == nullptr) {
      if (!std::exchange(warned_outside_, true)) {
        log_warning(
            "group '{}' did not fit next to the groups in use; allocating {} bytes outside the planned gather slots",
            wanted.name(),
            wanted.spec().gather_slot_bytes());
      }
      return arena_.allocate_outside(numel, wanted.dtype());
    }
    reshard(static_cast<size_t>(victim->number()));
  }
}

/// The page that may be evicted, or null.
PagedGroup* Unsharder::least_recently_used() const {
  PagedGroup* victim = nullptr;
  for (const auto& page : context_.pages.pages()) {
    const bool evictable =
        page->residency() == Residency::kUnsharded && page->pins.all == 0 &&
        !is_in_use(*page) && !page->slot_is_outside() &&
        context_.slots.is_paged(static_cast<size_t>(page->number()));
    if (evictable &&
        (victim == nullptr || page->use.last_epoch < victim->use.last_epoch)) {
      victim = page.get();
    }
  }
  return victim;
}

void Unsharder::settle_shard(size_t g) {
  if (context_.scheduler == nullptr) {
    return;
  }
  const TransferWaits::Scope waits(context_.waits);
  const runtime::StreamMarks marks = context_.scheduler->before_shard_use(g);
  lane_.wait_for(marks);
  marks.block_current(lane_.device());
  if (PagedGroup& page = context_.pages[g]; page.is_under_update()) {
    page.end_update(marks);
  }
}

void Unsharder::settle_unpaged() {
  for (size_t g = 0; g < context_.pages.size(); ++g) {
    if (!context_.slots.is_paged(g)) {
      settle_shard(g);
    }
  }
}

void Unsharder::let_update_go_on(size_t g) {
  if (context_.slots.is_paged(g) || context_.scheduler == nullptr ||
      !context_.scheduler->is_updating(g)) {
    return;
  }
  PagedGroup& page = context_.pages[g];
  page.use.epoch = 0; // operators come to wait_ready()
  page.begin_update();
}

void Unsharder::reshard(size_t g) {
  PagedGroup& page = context_.pages[g];
  if (page.residency() == Residency::kSharded || page.pins.all > 0 ||
      !context_.slots.is_paged(g)) {
    return;
  }
  issue_gathers(g);
  page.use.epoch = 0;
  runtime::Slot slot = page.reshard(watch(page));
  if (slot.defined()) {
    arena_.release(slot);
  }
}

void Unsharder::drop(size_t g) {
  reshard(g);
  context_.pages[g].use.epoch = 0;
}

void Unsharder::reshard_all() {
  if (context_.is_alone()) {
    return;
  }
  issue_gathers();
  for (size_t g = 0; g < context_.pages.size(); ++g) {
    reshard(g);
  }
  ++epoch_;
}

void Unsharder::restore(size_t g, const at::Tensor& whole) {
  cause_ = nullptr; // a page that is no longer paged
  runtime::Slot slot =
      context_.pages[g].restore(whole, context_.ranks->watch_failures());
  if (slot.defined()) {
    arena_.release(slot);
  }
}

} // namespace tessera::sharding

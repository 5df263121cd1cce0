// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Unsharder` all-gathers pages into slots and reshards them.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/streams/stream_lane.h"
#include "tessera/sharding/paging/pager_context.h"

#include <cstdint>
#include <deque>

namespace tessera::sharding {

/// Has the slots of unsharded pages and the lane of their all-gathers. All
/// ranks unshard the same pages in the same order: the caller follows a plan or
/// has agreed on it.
///
/// Pages that an operator uses are marked with the current epoch and are not
/// evicted in it. Pages that are not paged (SlotPlan::is_paged()) are always
/// unsharded.
class Unsharder {
 public:
  using End = runtime::OffsetAllocator::End;

  /// @param context must outlive this object.
  Unsharder(PagerContext& context, c10::Device device, MemoryLedger& ledger);

  /// Allocates the slots, or replaces them if these are more.
  /// @param bytes of all slots, which are free.
  void reserve_slots(int64_t bytes);
  int64_t slot_bytes() const {
    return arena_.capacity_bytes();
  }

  /// Begins the next epoch.
  /// @param cause the parameter that an operator reads; for errors.
  void begin_epoch(const PagedStorage* cause) {
    ++epoch_;
    cause_ = cause;
  }
  void mark_in_use(Page& page) const {
    page.use.epoch = epoch_;
    page.use.last_epoch = epoch_;
  }
  bool is_in_use(const Page& page) const {
    return page.use.epoch == epoch_;
  }

  /// Begins to unshard a page that is sharded; does nothing for others.
  /// @param end at which its slot is taken.
  /// @param exposed whether an operator waits for it; for the statistics.
  void begin_unshard(Page& page, End end, bool exposed);
  /// Issues the all-gather of a sharded page, after settle_shard() and
  /// issue_gathers().
  void unshard(Page& page);
  /// As above, into memory of its own, with the exact weights. Blocks until the
  /// page is readable.
  void unshard_outside(Page& page);
  /// Issues the all-gathers that wait for reads of files, in the order of their
  /// begin_unshard(), up to and including the page's; all if it is null.
  void issue_gathers(const Page* up_to = nullptr);
  /// Makes an unsharded page readable on the current stream. Blocks while it is
  /// under update.
  void wait_ready(Page& page);

  /// Reshards a page that is not pinned.
  void reshard(Page& page);
  /// As above, also if it is not paged: operators fault it in.
  void drop(Page& page);
  void reshard_all();
  /// Gives a page's parameters their whole values and memory back.
  /// @param whole [padded_numel].
  void restore(Page& page, const at::Tensor& full);

  /// Orders the lane and the current stream after the scheduler's work on the
  /// shard. Blocks.
  void settle_shard(Page& page);
  /// settle_shard() for all pages that are not paged.
  void settle_unpaged();
  /// Lets an update of a page that is not paged go on: wait_ready() waits for
  /// it. For others, the next all-gather does.
  void let_update_go_on(Page& page);
  /// Orders later all-gathers after what the current stream has written to
  /// shards.
  void follow_writes() const {
    lane_.follow_current();
  }
  /// Makes the current stream wait for all-gathers under way.
  void wait_for_lane() const {
    lane_.mark().block_current(lane_.device());
  }
  /// For destructors: the streams that get memory back wait for the lane.
  void wait_before_memory_is_freed() const noexcept;

  /// What this rank does when it unshards the page.
  RankIntent intent_to_read(const Page& page) const;

 private:
  void begin(
      Page& page,
      runtime::Slot slot,
      GatherFormat format = GatherFormat::kOfPage);
  /// Evicts pages to make room.
  runtime::Slot take_slot(const Page& wanted, End end = End::kLow);
  Page* least_recently_used() const;
  WaitCheck watch(const Page& page);

  PagerContext& context_;
  runtime::StreamLane lane_;
  runtime::SlotArena arena_;
  std::deque<Page*> reading_; ///< see issue_gathers()
  uint64_t epoch_ = 1;
  const PagedStorage* cause_ = nullptr; ///< of the epoch
  bool warned_outside_ = false;
};

} // namespace tessera::sharding

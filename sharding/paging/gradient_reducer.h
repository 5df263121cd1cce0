// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GradientReducer` collects the gradients of pages in slots and reduces them
// into this rank's shards.

#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/streams/stream_lane.h"
#include "tessera/sharding/pages/value_hashes.h"
#include "tessera/sharding/paging/pager_context.h"
#include "tessera/sharding/paging/unsharder.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// Has the slots of whole gradients and the lane of their reductions, and hands
/// final gradients to the scheduler. All ranks reduce the same pages in the
/// same order: the caller follows a plan or has agreed on it.
///
/// [Note: held slots] Gradients that are applied in backward stay in their slot
/// while the update reads them, concurrently with the rest of backward. A page
/// that finds no room waits for the update that began first: slots take no more
/// memory than without overlap, and backward is at most about one page ahead.
class GradientReducer {
 public:
  /// @param context, unsharder must outlive this object.
  GradientReducer(
      PagerContext& context,
      Unsharder& unsharder,
      c10::Device device,
      MemoryLedger& ledger);

  /// Allocates the slots, or replaces them if these are more.
  /// @param bytes of all slots, which are free or held.
  void reserve_slots(int64_t bytes);
  int64_t slot_bytes() const {
    return arena_.capacity_bytes();
  }
  /// Of slot_bytes(), what is not allocated now; see the constructor.
  int64_t unallocated_bytes() const {
    return arena_.capacity_bytes() - arena_.allocated_bytes();
  }

  /// States an intent and blocks until all ranks have stated it. Joins the
  /// reductions that some rank needs first.
  /// @return whether all ranks have stated that they are settled.
  /// @throws tessera::Error as RankAgreement::agree(), and as check_written().
  bool agree(const RankIntent& intent);
  /// Checks that the ranks have written the same values to parameters since
  /// they last agreed. Collective, but does nothing if this rank has written
  /// none.
  /// @param on_all_stages whether the ranks of all pipeline stages call it, or
  ///   those of this one.
  /// @throws tessera::Error on all of them if they have not, naming a
  /// parameter.
  void check_written(bool on_all_stages);
  /// @return the parameters to which pipeline stages have written other values,
  ///   of those that several have; empty: none. Collective over these stages.
  std::string find_other_copies(const WrittenValues& written);
  /// Compares values that all ranks are to have alike. Collective.
  /// @return the first difference; nothing if there is none.
  std::optional<ValueDifference> compare(const ValueHashes& values);

  /// Takes the gradient that autograd has left in parameter.grad(), if it is
  /// still there.
  void take(size_t parameter);
  /// Takes a page's gradients that arrived without a call of take(): set by
  /// hand, or because the user has replaced our hook.
  void collect_pending(Page& page);
  /// Adds to a gradient. May keep what autograd accumulates, which is not
  /// written to any more.
  void add(size_t parameter, const at::Tensor& gradient);
  /// Sets a gradient to zero; it stays defined.
  void zero(size_t parameter);
  /// Notifies the scheduler before gradients are changed.
  void before_change(const Page& page);

  /// Counts a gradient of the page.
  /// @return whether they are as many as in the steps before, with a world size
  ///   of one.
  bool count_arrival(Page& page);
  /// Ends the step's count.
  void end_count();
  /// Begins the step's count again: its gradients were dropped.
  void restart_count();

  /// Begins to reduce what was collected.
  /// @param is_final nothing reads the page or adds to its gradients until the
  ///   step.
  void begin(Page& page, bool is_final = false);
  /// Ends reductions for the host: final gradients are handed over, slots are
  /// released or held, except those that are being written to files.
  void finish();
  /// Releases the slots that are being written to files. Blocks.
  void finish_storing();
  /// Ends collecting without a reduction where zero_grad() has dropped all.
  void close_if_empty(Page& page);

  /// @throws tessera::Error when the page was updated in this step already.
  void check_not_updated(const Page& page, const char* label) const;

  /// Makes the current stream wait for the reductions.
  void wait_for_lane() const {
    lane_.mark().block_current(lane_.device());
  }
  /// For destructors: the streams that get memory back wait for the lane.
  void wait_before_memory_is_freed() const noexcept;

 private:
  struct HeldSlot {
    Page* page;
    runtime::Slot slot;
  };

  /// As agree(), but for what was written.
  bool state(const RankIntent& intent);
  /// Makes the page's bucket collect.
  void open(Page& page);
  /// Whether a page has all of its gradients, and its reduction has not begun.
  bool waits_for_reduction() const;
  runtime::Slot take_slot(const Page& page);
  /// Gives back the slot that has been held for longest. Blocks.
  void release_held_slot();
  void release_slot(Page& page);
  /// @return whether the gradients are still being read from the slot.
  bool hand_over(Page& page);

  PagerContext& context_;
  Unsharder& unsharder_;
  runtime::StreamLane lane_;
  runtime::StreamLane updates_; ///< applies gradients in backward
  runtime::SlotArena arena_;
  runtime::OffsetAllocator::End next_end_ = runtime::OffsetAllocator::End::kLow;
  std::vector<Page*> reducing_; ///< in issue order
  std::vector<Page*> storing_; ///< whose slots are being written to files
  std::deque<HeldSlot> held_slots_; ///< [Note: held slots]
  bool warned_outside_ = false;
};

} // namespace tessera::sharding

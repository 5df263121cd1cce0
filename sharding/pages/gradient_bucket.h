// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GradientBucket` collects the gradients of one PageMemory in a slot during
// backward, reduce-scatters them, and accumulates them in this rank's shard.
//
// [Note: order of averaging] The gradients of the ranks that shard a replica
// are summed, then those sums over the replicas, and the total is divided by
// the number of ranks. Float16 gradients are divided first, because their sum
// may overflow.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/deferred_scalar.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/shard_store.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/streams/stream_lane.h"
#include "tessera/sharding/interception/gradient_token.h"
#include "tessera/sharding/pages/page_memory.h"
#include "tessera/sharding/pages/pager_options.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// What a reduction over ranks with copies of a group does.
enum class GradientAveraging {
  kOverRanks, ///< the average over all ranks
  kNone, ///< each keeps its own, for an optimizer that exchanges something else
};

/// [Note: gradient life cycle] Autograd leaves a gradient in parameter.grad();
/// take() moves it into the slot and puts a token there. The reduction adds the
/// average over the ranks to the shard. A user's zero_grad() removes tokens:
/// refresh() detects that and drops what the shard and slot hold for those
/// parameters. With a world size of one the slot is the shard and nothing is
/// reduced.
///
/// [Note: gradients elsewhere] The shard may rest on another tier. What was
/// reduced leaves for there from the slot. To accumulate, the old sum comes
/// back first: to a part of the slot that the reduction has left free; behind
/// the gradients there where shards have a larger type than slots; or, where
/// the group is not divided, to the slot when it is opened, which then takes
/// the place of the shard.
///
/// [Note: applied gradients] If the optimizer runs during backward, a gradient
/// that is final at its reduction stays in the slot, is applied from there and
/// is never moved to a shard.
///
/// [Note: memory of gradients] A shard on the parameters' device has memory
/// from its first gradient to clear(), so that the activations of the next
/// forward can have it, except where updates go on after the step and read it.
/// It is of the stream on which gradients arrive, which is that of activations.
///
/// [Note: reductions in another format] With PageSpec::reduce_format, the
/// gradients are encoded to a place behind them in the slot, a part for each
/// rank, and exchanged: what arrives overwrites the gradients. Its sum, in
/// float32 and divided by the number of ranks, is placed behind it. The sum
/// over the replicas takes the same way twice, for the parts of a shard and for
/// their sums, in the memory of what arrived first; where that is too small,
/// because the shard is, the sum is sent as it is.
///
/// On a device with streams take(), and add() of what autograd accumulates,
/// only keep the gradient until all have arrived or the reduction begins; then
/// one kernel moves or adds all of them.
class GradientBucket {
 public:
  /// @param group, replicas outlive the bucket.
  /// @param replicas the ranks that hold the same part of the group.
  /// @param store where the shard rests; null: on the parameters' device.
  /// @param keeps_memory whether clear() leaves the shard its memory.
  GradientBucket(
      PageMemory& group,
      PageFaultHandler& handler,
      Communicator& replicas,
      MemoryLedger& ledger,
      runtime::ShardStore* store = nullptr,
      bool keeps_memory = false);
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  /// Average over the ranks of the accumulated gradients of this rank's shard:
  /// [shard_numel]. Only runs of parameters with has_gradient() are valid.
  /// Undefined if none is kept and there is no gradient.
  runtime::RestingTensor shard() const {
    return applies_slot() ? runtime::RestingTensor(reduced_) : shard_;
  }
  /// Returns whether the shard rests on another tier.
  bool is_stored() const {
    return store_ != nullptr;
  }
  /// Returns whether clear() will free the shard's memory.
  bool frees_memory() const {
    return !keeps_memory_ && shard_.defined();
  }
  /// Changes the shard.
  /// @param change is called with shard() in memory. Blocks.
  void change(const std::function<void(const at::Tensor& shard)>& change);

  /// The factor by which shard() must be multiplied to get the gradients:
  /// clipping defers the multiplication to the next reader. May block, see
  /// DeferredScalar; known_factor() * deferred_factor() do not.
  double factor() const {
    return known_factor_ * deferred_factor_.value();
  }
  /// The stream that gets the shard's memory back; null for the CPU.
  const std::optional<c10::Stream>& allocated_on() const {
    return allocated_on_;
  }
  double known_factor() const {
    return known_factor_;
  }
  const DeferredScalar& deferred_factor() const {
    return deferred_factor_;
  }
  void multiply(const DeferredScalar& factor);
  /// Multiplies the shard by factor().
  void apply_factor();

  /// How gradients are reduced from the next open() on; at first kOverRanks.
  /// kNone takes a group that is not divided.
  void set_averaging(GradientAveraging averaging) {
    averaging_ = averaging;
  }

  /// Of slots; shard() too while is_applying().
  at::ScalarType slot_dtype() const {
    return types_.slot;
  }
  /// The tier on which the shard rests.
  MemoryTier tier() const {
    return store_ != nullptr ? store_->tier() : MemoryTier::kDevice;
  }
  /// Elements of a slot.
  int64_t slot_numel() const;

  /// The runs of shard(), by position in the group's parameter list.
  const std::vector<runtime::FlatSegment>& local_segments() const {
    return local_segments_;
  }

  /// Returns whether it has been opened: true from open() until end_reduce() or
  /// close_empty().
  bool is_open() const {
    return state_ == State::kCollecting || is_reducing();
  }
  /// Starts collecting into `slot` ([slot_numel()], slot_dtype()); undefined
  /// when the shard is to collect them, which takes a group that is not
  /// divided.
  void open(runtime::Slot slot);

  /// Moves parameter.grad() of the group's parameter `i` into the slot and
  /// leaves the token.
  /// @throws tessera::Error on a sparse gradient.
  void take(size_t i);

  /// Adds `gradient` to the collected gradient of parameter `i`.
  /// @param keeps whether `gradient` does not change any more, so that the
  ///   bucket may keep it as take() does.
  void add(size_t i, const at::Tensor& gradient, bool keeps = false);
  /// Moves gradients that wait to the slot.
  void pack();

  /// Sets the collected and accumulated gradient of parameter `i` to zero; the
  /// parameter still has a gradient.
  void zero(size_t i);

  bool any_arrived() const;
  bool all_arrived() const;

  /// Starts the reduction of what was collected, on the lane; parameters that
  /// collected nothing count as zero. All untaken gradients must have been
  /// taken before. Readers of the shard must wait for the lane afterwards.
  /// @param lane must outlive the bucket.
  /// @param apply the result is final and applied before release_slot().
  void begin_reduce(
      Communicator& communicator,
      const runtime::StreamLane& lane,
      bool apply = false);
  /// Returns whether end_reduce() must be called.
  bool is_reducing() const {
    return state_ == State::kReducing || state_ == State::kReduced;
  }
  /// Ends the reduction for the host: shard() has the result, or will have it
  /// when the lane is done.
  void end_reduce(const WaitCheck& check);
  /// Returns whether the result may still be on its way from the slot to a
  /// file.
  bool is_storing() const {
    return state_ == State::kEnded && storing_.pending() &&
           tier() == MemoryTier::kNvme;
  }
  /// Gives the slot back after end_reduce(), marked with the lane's work.
  /// Blocks while is_storing().
  runtime::Slot release_slot();

  /// True from begin_reduce() with `apply` to release_slot().
  bool is_applying() const {
    return use_ == Use::kApplyShard || use_ == Use::kApplySlot;
  }
  /// Returns whether the group was updated with the gradients of this step,
  /// which no longer exist: until clear(), whatever zero_grad() does.
  bool is_applied() const {
    return use_ == Use::kApplied;
  }
  /// Returns whether the user has zeroed gradients that were applied already,
  /// as far as refresh() has seen.
  bool lost_applied() const {
    return lost_applied_;
  }

  /// Ends collecting without a reduction, when no collected gradient remains.
  runtime::Slot close_empty();

  /// Detects gradients that the user has zeroed or set since the last call;
  /// those that were set must be taken with take().
  void refresh();

  /// Returns whether parameter `i` has a gradient that is still to be applied.
  bool has_gradient(size_t i) const {
    return entries_[i].has && use_ != Use::kApplied;
  }
  /// Returns whether any parameter has a gradient with a part on this rank.
  bool any_gradient() const;
  /// Returns whether parameter `i` got a gradient: on this rank or, once agreed
  /// on, on any rank.
  bool got_gradient(size_t i) const {
    return entries_[i].has;
  }
  /// Sets what all ranks have agreed on.
  void set_has_gradient(size_t i, bool has) {
    entries_[i].has = has;
  }
  /// Notes that something of parameter `i`'s gradient came from a backward that
  /// is not of the engine.
  void note_other_backward(size_t i) {
    entries_[i].of_other_backward = true;
  }
  bool is_of_other_backward(size_t i) const {
    return entries_[i].has && entries_[i].of_other_backward;
  }
  /// Returns whether parameter.grad() holds a tensor of the user that was not
  /// taken yet.
  bool is_pending(size_t i) const;

  /// Adds the settled gradients of the same group on other pipeline stages,
  /// which must be sharded in the same way on each rank of `copies`. All
  /// parameters have a gradient afterwards, and no more can be added until
  /// clear() or the user's zero_grad(). Collective over `copies`; blocks.
  void add_copies(Communicator& copies, const WaitCheck& check);
  bool has_copies() const {
    return has_copies_;
  }
  /// Counts the gradients that the user has passed (Engine::reduce()) and not
  /// dropped.
  void note_passed_by_user() {
    ++passed_by_user_;
  }
  int passed_by_user() const {
    return passed_by_user_;
  }

  /// Resets all gradients.
  void clear();

  /// Removes tokens and forgets the parameters.
  void retire();

 private:
  /// What the bucket does with its slot, or with the shard in its place.
  enum class State {
    kEmpty, ///< there is no slot
    kCollecting, ///< from open() on
    kReducing, ///< from begin_reduce() on
    kReduced, ///< the lane has, or will have, all of it
    kEnded, ///< from end_reduce() to release_slot()
  };
  /// Where open() makes it collect.
  enum class Target {
    kSlot,
    kSlotOnTop, ///< as kSlot, where the shard was brought to first
    kShard, ///< there is no slot
  };
  /// What the gradients of this step are for; see [Note: applied gradients].
  enum class Use {
    kStep,
    kApplyShard, ///< they are applied now, from the shard
    kApplySlot, ///< as above, from the slot
    kApplied,
  };

  /// @throws tessera::Error unless the state is `from`.
  void advance(State from, State to);
  static const char* name_of(State state);
  bool applies_slot() const {
    return use_ == Use::kApplySlot;
  }

  struct Entry {
    at::Tensor parameter;
    at::Tensor token;
    GradientTokenInfo info;
    at::Tensor waiting; ///< arrived, but not yet in the slot
    bool adds = false; ///< the waiting gradient, to what the slot holds
    runtime::FlatSpan span;
    bool requires_grad = false;
    bool arrived = false; ///< something of it is in the slot
    bool in_shard = false; ///< the shard's run is part of the gradient
    bool has = false;
    bool token_placed = false;
    bool of_other_backward = false; ///< see note_other_backward()
  };

  /// Returns whether the slot, or the shard in its place, holds what was
  /// accumulated before.
  bool collects_on_top() const {
    return target_ != Target::kSlot;
  }
  void bring_shard_to_slot();
  at::Tensor memory_for_shard() const;
  void store_reduced();
  static bool holds_token(const Entry& entry);
  void place_token(Entry& entry);
  void refresh(Entry& entry);
  at::Tensor slot_view(const Entry& entry) const;
  void store(const Entry& entry, const at::Tensor& gradient);
  /// Keeps a gradient of the current stream until the group's others have come.
  void keep(Entry& entry, at::Tensor gradient, bool adds);
  void fill_missing();
  /// Orders the current stream after the previous writer of the slot.
  void write_on_current_stream();
  /// Moves waiting gradients to the slot.
  /// @param rest spans without a gradient, which are set to zero.
  void pack_waiting(const std::vector<runtime::FlatSpan>& rest);
  std::vector<runtime::FlatSpan> missing_spans() const;
  /// Copies the shard to `into`, on the current stream.
  void read_shard(const at::Tensor& into);
  /// Issues the reduction over the ranks that shard the group, on the lane.
  void issue_reduce(Communicator& communicator);
  /// What arrives in another format becomes the sum over these ranks.
  void sum_received();
  /// Adds up the copies of the shard.
  void sum_over_replicas(const WaitCheck& check);
  void sum_encoded_over_replicas(int64_t part_numel, const WaitCheck& check);
  /// Bytes [begin, begin + bytes) of the slot.
  at::Tensor slot_bytes(int64_t begin, int64_t bytes) const;
  /// Ends the reduction, on the lane.
  void complete(const WaitCheck& check);
  /// Returns whether the reduction is added to what the shard already holds.
  bool accumulates() const;
  bool divides_first() const;
  void ensure_shard();
  /// The factor by which gradients are multiplied on their way to the slot.
  double packing_factor() const;

  PageMemory& group_;
  int rank_; ///< among those that shard the group
  int ranks_; ///< whose gradients are averaged
  Communicator& replicas_;
  MemoryLedger& ledger_;
  GradientTypes types_;
  runtime::ShardStore* store_;
  bool keeps_memory_;
  std::vector<Entry> entries_;
  std::vector<runtime::FlatSegment> local_segments_;
  std::vector<runtime::FlatSpan>
      gaps_; ///< spans of the flat buffer without a parameter
  runtime::RestingTensor shard_;
  std::optional<c10::Stream> allocated_on_; ///< by the shard
  /// [padded_numel], of the slot, or the shard in a world of one.
  at::Tensor collected_;
  runtime::Slot slot_;
  runtime::PendingTransfer storing_; ///< transfer from the slot
  at::Tensor reduced_; ///< result of the reduction in progress
  PendingCollective pending_;
  bool packs_; ///< on a device with streams
  runtime::StreamSet
      arrived_on_; ///< streams that produced the waiting gradients
  std::optional<c10::Stream> writer_; ///< last stream that wrote to the slot
  const runtime::StreamLane* lane_ = nullptr; ///< of the reduction in progress
  GradientAveraging averaging_ = GradientAveraging::kOverRanks;
  State state_ = State::kEmpty;
  Target target_ = Target::kShard;
  Use use_ = Use::kStep;
  bool has_copies_ = false;
  int passed_by_user_ = 0;
  bool lost_applied_ = false; ///< see lost_applied()
  double known_factor_ = 1;
  DeferredScalar deferred_factor_ = 1;
};

} // namespace tessera::sharding

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gradients of one ParamGroup: collected whole in a slot during backward,
// reduced over the ranks, accumulated in this rank's shard.
//
// [Note: order of averaging] The gradients of the ranks that divide a copy are
// added up, then those sums over the copies, and the total is divided by the
// number of ranks. Float16 gradients are divided first, because their
// sum may be too large for the type.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/shard_store.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/memory/stream_lane.h"
#include "tessera/sharding/gradient_token.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/param_group.h"
#include "tessera/sharding/shard_mesh.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace tessera {

/// [Note: gradient life cycle] Autograd leaves a gradient in parameter.grad();
/// take() moves it into the slot and puts a token there. The reduction adds the
/// average over the ranks to the shard. A user's zero_grad() removes tokens:
/// refresh() sees that and drops what the shard and slot held for those
/// parameters. In a world of one the slot is the shard and nothing is reduced.
///
/// [Note: gradients elsewhere] The shard may rest on another tier. What was
/// reduced leaves for there from the slot. To accumulate, the old sum comes
/// back first: to a part of the slot that the reduction has left free; behind
/// the gradients there where shards have a larger type than slots; or, where
/// the group is not divided, to the slot when it is opened, which then takes
/// the place of the shard.
///
/// [Note: applied gradients] Where the optimizer runs during backward, a
/// gradient that is final at its reduction stays in the slot, is applied from
/// there and never gets to a shard. A bucket that is made for this has a shard
/// only while a step needs one.
///
/// On a device with streams take() only keeps the gradient, until all are there
/// or the reduction begins; then one kernel moves all of them.
class GradientBucket {
 public:
  /// @param group, replicas outlive the bucket.
  /// @param replicas the ranks that hold the same part of the group.
  /// @param store where the shard rests; null: on the parameters' device.
  /// @param keeps_shard false: see [Note: applied gradients].
  GradientBucket(
      ParamGroup& group,
      GradientTypes types,
      PageFaultHandler& handler,
      const ShardMesh& mesh,
      Communicator& replicas,
      MemoryLedger& ledger,
      ShardStore* store = nullptr,
      bool keeps_shard = true);
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  /// Average over the ranks of the accumulated gradients of this rank's slice:
  /// [shard_numel]. Only runs of parameters with has_gradient() have meaning.
  /// Undefined where none is kept and there is no gradient.
  RestingTensor shard() const {
    return applying_ ? RestingTensor(reduced_) : shard_;
  }
  /// Whether it has to leave for another tier.
  bool is_stored() const {
    return store_ != nullptr;
  }
  /// Changes it. @param change gets shard() in memory. Blocks.
  void change(const std::function<void(const at::Tensor& shard)>& change);

  /// What shard() is to be multiplied with to get the gradients: whoever clips
  /// them leaves the work to whoever reads them next.
  double factor() const {
    return factor_;
  }
  void multiply(double factor) {
    factor_ *= factor;
  }
  /// Does the multiplication.
  void apply_factor();

  /// Of slots; shard() too while applying().
  at::ScalarType slot_dtype() const {
    return types_.slot;
  }
  /// Of the shard that gradients add up in.
  at::ScalarType shard_dtype() const {
    return types_.shard;
  }
  /// Bytes of shard() while it is kept, as the ledger counts them.
  int64_t shard_bytes() const;
  /// Where they are.
  MemoryTier tier() const {
    return store_ != nullptr ? store_->tier() : MemoryTier::kDevice;
  }
  /// Elements and bytes of a slot.
  int64_t slot_numel() const;
  int64_t slot_bytes() const;

  /// The runs of shard(), by position in the group's parameter list.
  const std::vector<FlatRun>& own_runs() const {
    return own_runs_;
  }

  /// True between open() and begin_reduce()'s end.
  bool is_open() const {
    return open_;
  }
  /// Starts collecting into `slot` ([slot_numel()], slot_dtype()); undefined
  /// when the shard is to collect them, which takes a group that is not
  /// divided.
  void open(Slot slot);

  /// Moves parameter.grad() of the group's parameter `i` into the slot and
  /// leaves the token. @throws tessera::Error on a sparse gradient.
  void take(size_t i);

  /// Adds `gradient` to what parameter `i` has collected.
  void add(size_t i, const at::Tensor& gradient);

  /// Sets the collected and accumulated gradient of parameter `i` to zero;
  /// it keeps having one.
  void zero(size_t i);

  bool any_arrived() const;
  bool all_arrived() const;

  /// Starts the reduction of what was collected, on the lane; parameters that
  /// collected nothing count as zero. Untaken gradients must have been taken
  /// before. Whoever reads the shard afterwards waits for the lane.
  /// @param lane outlives the bucket.
  /// @param apply the result is final and applied before release_slot().
  void begin_reduce(
      Communicator& communicator,
      const StreamLane& lane,
      bool apply = false);
  bool reducing() const {
    return reducing_;
  }
  /// Ends it for the host: shard() has the result, or will have it.
  void end_reduce(const WaitCheck& check);
  /// True while the result may still be on its way from the slot to a file.
  bool is_storing() const {
    return slot_.defined() && !open_ && !reducing_ && storing_.pending() &&
           tier() == MemoryTier::kNvme;
  }
  /// Gives the slot back after end_reduce(), marked with the lane's work.
  /// Blocks while is_storing().
  Slot release_slot();

  /// True from begin_reduce() with `apply` to release_slot().
  bool applying() const {
    return apply_;
  }
  /// Whether the group was updated with the gradients of this step, which are
  /// gone. A zero_grad() of all parameters starts the group anew.
  bool applied();

  /// Ends collecting without a reduction, when nothing is left of it.
  Slot close_empty();

  /// Notices gradients that the user has zeroed or set since the last call;
  /// such a set gradient needs take().
  void refresh();

  /// Whether parameter `i` has a gradient that is still to be applied.
  bool has_gradient(size_t i) const {
    return entries_[i].has && !applied_;
  }
  /// Whether any parameter has one with a part on this rank.
  bool any_gradient() const;
  /// Whether it got one, on this rank or, once agreed on, on any.
  bool got_gradient(size_t i) const {
    return entries_[i].has;
  }
  /// What all ranks have agreed on.
  void set_has_gradient(size_t i, bool has) {
    entries_[i].has = has;
  }
  /// True when parameter.grad() holds a tensor of the user's that was not
  /// taken yet.
  bool is_untaken(size_t i) const;

  /// Adds the settled gradients of the same group elsewhere: in each of
  /// `copies`, a group divided in the same way. All parameters have a gradient
  /// afterwards, and get no more of it until clear() or the user's zero_grad().
  /// Collective over the copies; blocks.
  void add_copies(Communicator& copies, const WaitCheck& check);
  bool has_copies() const {
    return has_copies_;
  }

  /// Sets all gradients to none.
  void clear();

  /// Removes tokens and forgets the parameters.
  void retire();

 private:
  struct Entry {
    at::Tensor parameter;
    at::Tensor token;
    GradientTokenInfo info;
    at::Tensor waiting; ///< arrived, but not yet in the slot
    FlatSpan span;
    bool requires_grad = false;
    bool arrived = false; ///< something of it is in the slot
    bool in_shard = false; ///< the shard's run is part of the gradient
    bool has = false;
    bool token_placed = false;
  };

  /// The slot, or the shard in its place, holds what was accumulated before.
  bool collects_on_top() const {
    return !slot_.defined() || on_top_;
  }
  void bring_shard_to_slot();
  at::Tensor room_for_shard() const;
  void store_reduced();
  static bool holds_token(const Entry& entry);
  void place_token(Entry& entry);
  void refresh(Entry& entry);
  at::Tensor slot_view(const Entry& entry) const;
  void store(const Entry& entry, const at::Tensor& gradient);
  void fill_missing();
  /// Orders the current stream behind whoever wrote to the slot before.
  void write_on_current_stream();
  /// Moves what waits to the slot. @param rest zeros to what nothing came for.
  void pack_waiting(const std::vector<FlatSpan>& rest);
  std::vector<FlatSpan> missing_spans() const;
  /// The end of the reduction, on the lane.
  void complete(const WaitCheck& check);
  /// True when the reduction is added to what the shard already holds.
  bool accumulates() const;
  bool divides_first() const;
  void ensure_shard();
  /// What gradients are multiplied with on their way to the slot.
  double packing_factor() const;

  ParamGroup& group_;
  int rank_; ///< among those that divide the group
  int ranks_; ///< whose gradients are averaged
  Communicator& replicas_;
  MemoryLedger& ledger_;
  GradientTypes types_;
  ShardStore* store_;
  bool keeps_shard_;
  std::vector<Entry> entries_;
  std::vector<FlatRun> own_runs_;
  std::vector<FlatSpan> gaps_; ///< of the flat buffer, without a parameter
  RestingTensor shard_;
  /// [padded_numel], of the slot, or the shard in a world of one.
  at::Tensor collected_;
  Slot slot_;
  bool on_top_ = false; ///< the shard was brought to the slot
  PendingTransfer storing_; ///< from the slot
  at::Tensor reduced_; ///< where the running reduction arrives
  PendingCollective pending_;
  bool packs_; ///< on a device with streams
  StreamSet arrived_on_; ///< streams that made what waits
  std::optional<c10::Stream> writer_; ///< of the slot, the last one
  const StreamLane* lane_ = nullptr; ///< of the running reduction
  bool completed_ = false;
  bool apply_ = false; ///< the running reduction's result
  bool applying_ = false; ///< and it stays in the slot
  bool applied_ = false;
  bool has_copies_ = false;
  double factor_ = 1;
  bool open_ = false;
  bool reducing_ = false;
};

} // namespace tessera

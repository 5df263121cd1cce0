// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page: parameters that are gathered, reduced and dropped together.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/shard_store.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/memory/stream_lane.h"
#include "tessera/sharding/grouping.h"
#include "tessera/sharding/paged_storage.h"
#include "tessera/sharding/precision.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera {

class PageFaultHandler;

/// A parameter's place in its group's flat buffer.
struct PagedParameter {
  ParameterRecord record;
  size_t index = 0; ///< in the pager's list of all parameters
  FlatSpan span; ///< in the flat buffer, elements
};

/// Where this rank's slices of a group rest; null: on the parameters' device.
struct ShardStores {
  ShardStore* parameters = nullptr;
  ShardStore* master = nullptr; ///< if the group has master weights
};

enum class Residency { kSharded, kUnsharding, kUnsharded };

/// One flat buffer of one dtype, divided evenly over the ranks.
///
/// The gather output *is* the parameters' memory: while unsharded, every
/// parameter's StorageImpl points into the slot; nothing is copied in or out.
///
/// [Note: shards elsewhere] This rank's slice may rest on another tier. It is
/// then brought to its place in the slot first, and gathered from there. A copy
/// from host memory is issued to the lane, and the gather right behind it. A
/// file takes time: the gather is issued by issue_unshard(), later, so that the
/// host need not wait; all ranks call that for the same groups in the same
/// order, and end_unshard() or reshard() does it at the latest.
class ParamGroup {
 public:
  /// Takes this rank's slice of every parameter and frees the rest; of a
  /// deferred parameter (deferred_init.h) it makes the slice alone. Parameters
  /// whose ParameterRecord::dtype is not their own are changed to it.
  /// @param first_index index of the first parameter in the pager's list.
  /// @param policy all records have the same dtype by it.
  /// @param stores outlive the group.
  ParamGroup(
      const GroupSpec& spec,
      size_t first_index,
      const PrecisionPolicy& policy,
      PageFaultHandler& handler,
      int rank,
      int world_size,
      MemoryLedger& ledger,
      const ShardStores& stores = {});
  ~ParamGroup();

  const std::string& name() const {
    return name_;
  }
  bool trainable() const {
    return trainable_;
  }
  bool scattered() const {
    return scattered_;
  }
  /// See GroupSpec::blocks.
  const std::vector<int>& blocks() const {
    return blocks_;
  }
  at::ScalarType dtype() const {
    return dtype_;
  }
  const FlatLayout& layout() const {
    return layout_;
  }
  int64_t padded_bytes() const;
  const std::vector<PagedParameter>& parameters() const {
    return parameters_;
  }
  PageFaultHandler& handler() const {
    return handler_;
  }

  /// Of the parameters.
  c10::Device device() const {
    return device_;
  }

  /// This rank's slice of the weights, as it is gathered: [shard_numel],
  /// dtype().
  const RestingTensor& shard() const {
    return shard_;
  }
  /// Whether it has to be brought in from another tier.
  bool is_stored() const {
    return shard_.tier() != MemoryTier::kDevice;
  }

  /// This rank's slice of the weights as optimizers update it: [shard_numel],
  /// of at least float32 precision. The shard itself where that is precise
  /// enough; else whoever updates it writes the rounded values to the shard.
  const RestingTensor& master() const {
    return own_master_ ? master_ : shard_;
  }
  bool has_own_master() const {
    return own_master_;
  }
  at::ScalarType master_dtype() const {
    return own_master_ ? at::kFloat : dtype_;
  }
  /// From now on whoever wants the weights from where they rest gets this
  /// error.
  void lose_values(const std::string& why) {
    loss_ = why;
  }
  /// Takes another tensor, which rests on the same tier, for the group's own
  /// master weights and gives its own for it.
  void swap_master(RestingTensor& master) {
    std::swap(master_, master);
  }
  /// @throws tessera::Error after lose_values().
  void check_values() const;
  /// The master weights in memory, on the parameters' device: themselves, or a
  /// copy. Blocks.
  at::Tensor read_master() const;
  /// After what read_master() returned was written to: takes it over and rounds
  /// it into the shard. Blocks.
  void write_master(const at::Tensor& values);
  /// The parameters' type outside of the engine.
  at::ScalarType original_dtype() const {
    return original_dtype_;
  }
  /// Operators get their other arguments in dtype().
  bool casts_arguments() const {
    return casts_arguments_;
  }

  /// Shows `whole` ([padded_numel], any dtype) as parameter `i`'s value.
  at::Tensor view_of(const at::Tensor& whole, size_t i) const;

  Residency residency() const {
    return residency_;
  }

  /// Starts the all-gather into `slot` ([padded_numel], dtype()), on the lane;
  /// of a shard in a file, its reading (see [Note: shards elsewhere]).
  /// @param communicator, lane outlive the group; the lane comes after what was
  ///   written to shard().
  void begin_unshard(
      Communicator& communicator,
      Slot slot,
      const StreamLane& lane);

  /// True while the gather waits for issue_unshard().
  bool is_reading() const {
    return reading_;
  }
  /// Issues the gather of what is in the slot by then. Blocks until it is.
  void issue_unshard();

  /// Ends it: the parameters are readable, on the current stream. The host
  /// does not wait where the communicator runs on streams.
  void end_unshard(const WaitCheck& check);

  /// To be called before each use of the unsharded group: the current stream
  /// comes after the gather, and the slot is not used again before it. Cheap
  /// from the second time on; nothing on the CPU.
  void use_on_current_stream();

  /// Points the parameters at the shard itself: an undivided group.
  void attach_shard();

  /// Drops the whole weights and gives the slot back, marked with the work of
  /// all streams that used it. Ends a running gather.
  Slot reshard(const WaitCheck& check);

  /// Copies this rank's slice of the unsharded weights into the shard, after
  /// they were written in place. Master weights of elements that were not
  /// written keep their precision.
  void write_back();

  /// The whole weights while unsharded: [padded_numel].
  const at::Tensor& whole() const {
    return whole_;
  }

  /// @throws tessera::Error naming a parameter whose storage or key was
  ///   replaced behind the engine's back.
  void check_identity() const;

  /// Ends paging: every storage gets memory of its own and the type it had,
  /// filled from `whole` ([padded_numel], any dtype). Ends a running gather.
  /// @return the slot, if there was one.
  Slot restore(const at::Tensor& whole, const WaitCheck& check);

  /// Makes autograd refuse to use what it saved of the old values.
  void bump_versions();

  /// True while the whole weights are in a buffer of their own.
  bool slot_is_outside() const {
    return slot_.defined() && slot_.offset < 0;
  }
  /// Marks for the pager.
  int number = 0; ///< in the pager's list
  uint64_t touched_epoch = 0; ///< of the plan entry that last used the group
  uint64_t last_use = 0; ///< for least-recently-used eviction
  int pins = 0; ///< gather scopes that hold it
  bool written = false; ///< by a gather scope, since it was unsharded

 private:
  void begin_gather(const at::Tensor& shard);
  void finish_gather(const WaitCheck& check);
  Slot take_slot();
  RestingTensor make_shard(
      const char* what,
      MemoryPurpose purpose,
      at::ScalarType dtype,
      MemoryLedger& ledger,
      ShardStore* store) const;
  at::Tensor own_slice(const at::Tensor& whole) const;
  void attach(const at::Tensor& whole);
  void detach();
  void take_slice(
      const c10::Storage& storage,
      int64_t begin,
      const at::Tensor& shard,
      const at::Tensor& master);
  at::Tensor slice_of(const c10::Storage& storage, int64_t first, int64_t numel)
      const;
  std::vector<c10::Storage> retype(
      const GroupSpec& spec,
      const std::vector<c10::Storage>& storages);

  std::string name_;
  bool scattered_;
  std::vector<int> blocks_;
  bool trainable_;
  at::ScalarType dtype_;
  at::ScalarType original_dtype_;
  bool casts_arguments_;
  PageFaultHandler& handler_;
  int rank_;
  FlatLayout layout_;
  std::vector<std::unique_ptr<PagedStorage>> storages_;
  std::vector<PagedParameter> parameters_;
  c10::Device device_;
  RestingTensor shard_;
  bool own_master_ = false;
  RestingTensor master_;
  std::string loss_; ///< of the values; empty: there is none
  at::Tensor whole_;
  Slot slot_;
  PendingTransfer arriving_; ///< the shard, in its place in the slot
  bool reading_ = false; ///< and the gather is not issued
  Communicator* communicator_ = nullptr; ///< of the last gather
  PendingCollective gather_;
  const StreamLane* lane_ = nullptr; ///< of the last gather
  StreamMarks ready_; ///< behind the gather
  StreamSet users_; ///< streams that have waited for it
  Residency residency_ = Residency::kSharded;
};

/// How a group's parameters lie in its flat buffer.
FlatLayout flat_layout_of(const GroupSpec& spec, int shards);

} // namespace tessera

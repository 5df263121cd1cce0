// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageMemory` is the weights of a page, i.e. of parameters that are unsharded,
// reduced and resharded together: this rank's shard, and all of them while they
// are unsharded.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/shard_tiers.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/streams/stream_lane.h"
#include "tessera/sharding/interception/paged_storage.h"
#include "tessera/sharding/pages/page_spec.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

enum class Residency { kSharded, kUnsharding, kUnsharded };

/// In what an all-gather sends weights.
enum class GatherFormat {
  kOfPage, ///< PageSpec::gather_format
  kExact, ///< as they rest
};

/// One flat buffer of one dtype, divided evenly over the ranks.
///
/// The output of the all-gather *is* the parameters' memory: while unsharded,
/// every parameter's StorageImpl points into the slot; nothing is copied in or
/// out.
///
/// [Note: shards elsewhere] This rank's shard may rest on another tier. It is
/// then first brought to its place in the slot, and all-gathered from there. A
/// copy from host memory is issued to the lane, followed by the all-gather.
/// Reading a file takes time: the all-gather is issued later, by
/// issue_unshard(), so that the host need not wait; all ranks call that for the
/// same groups in the same order, and end_unshard() or reshard() does it at the
/// latest.
///
/// [Note: gathers in another format] With PageSpec::gather_format, every rank
/// encodes its shard to a place behind the parameters in the slot, where those
/// of all ranks arrive; they are decoded when the gather ends. This rank's own
/// weights take the same way, so that all ranks have the same bits. Where
/// shards rest in blocks (PageSpec::resting_format), these are sent as they
/// are; what rests on the device of one rank alone is expanded without a copy.
///
/// [Note: shards under update] Operators use the shard itself of a group that
/// is not paged. While an update writes to it beside forward (begin_update()),
/// the pager makes the first operator on it wait, one that only takes a view
/// too, and a read of its memory that is no operator's is an error: nothing
/// could make it wait.
class PageMemory {
 public:
  /// Takes this rank's slice of every parameter and frees the rest; for a
  /// deferred parameter (deferred_init.h) it makes only the slice. Parameters
  /// are converted to ParameterRecord::dtype.
  /// @param stores must outlive the group.
  PageMemory(
      PageSpec spec,
      PageFaultHandler& handler,
      MemoryLedger& ledger,
      const runtime::ShardStores& stores = {});
  ~PageMemory();

  const PageSpec& spec() const {
    return spec_;
  }
  const std::string& name() const {
    return spec_.name;
  }
  bool trainable() const {
    return spec_.trainable;
  }
  at::ScalarType dtype() const {
    return spec_.dtype;
  }
  const runtime::FlatLayout& layout() const {
    return spec_.layout;
  }
  /// None after restore().
  const std::vector<PagedParameter>& parameters() const {
    return spec_.parameters;
  }

  /// Device of the parameters.
  c10::Device device() const {
    return spec_.device;
  }

  /// This rank's shard of the weights, as it is all-gathered:
  /// [PageSpec::resting_numel()], resting_dtype().
  const runtime::RestingTensor& shard() const {
    return shard_;
  }

  /// This rank's shard of the weights as optimizers update it: [shard_numel],
  /// of at least float32 precision. It is shard() itself if that is precise
  /// enough; otherwise the updater writes the rounded values to shard(). Not of
  /// a page that rests in blocks, which nothing updates.
  const runtime::RestingTensor& master() const {
    return spec_.has_separate_master ? master_ : shard_;
  }
  bool has_separate_master() const {
    return spec_.has_separate_master;
  }
  at::ScalarType master_dtype() const {
    return spec_.master_dtype();
  }
  /// Marks the weights as lost: from now on, reading them from where they rest
  /// throws an error with this reason.
  void lose_values(const std::string& why) {
    loss_ = why;
  }
  /// Where its own master weights rest; null if it has none. Another tensor on
  /// the same tier may take their place.
  runtime::RestingTensor* separate_master() {
    return spec_.has_separate_master ? &master_ : nullptr;
  }
  /// @throws tessera::Error after lose_values().
  void check_values() const;
  /// The parameters' dtype outside of the engine.
  at::ScalarType original_dtype() const {
    return spec_.original_dtype;
  }
  /// Returns a view of `full` ([padded_numel], any dtype) as parameter `i`'s
  /// value.
  at::Tensor view_of(const at::Tensor& full, size_t i) const;

  Residency residency() const {
    return residency_;
  }

  /// Starts the all-gather into `slot` ([PageSpec::gather_slot_numel()], or
  /// [padded_numel] for kExact of one that does not rest in blocks; dtype()),
  /// on the lane; if the shard is in a file, starts reading it; see [Note:
  /// shards elsewhere].
  /// @param communicator, lane must outlive the group; the lane must be ordered
  ///   after writes to shard().
  void begin_unshard(
      Communicator& communicator,
      runtime::Slot slot,
      const runtime::StreamLane& lane,
      GatherFormat format = GatherFormat::kOfPage);

  /// Returns whether the all-gather waits for issue_unshard().
  bool is_reading() const {
    return reading_;
  }
  /// Issues the all-gather once the shard is in the slot. Blocks until then.
  void issue_unshard();

  /// Ends the all-gather: the parameters are readable, on the current stream.
  /// The host does not wait if the communicator runs on streams.
  void end_unshard(const WaitCheck& check);

  /// Must be called before each use of the unsharded group: orders the current
  /// stream after the all-gather, and the next use of the slot after the
  /// current stream. Cheap after the first call; does nothing on the CPU.
  void use_on_current_stream();

  /// Points the parameters at the shard itself, for a group that is not
  /// sharded.
  /// @param notes_users whether use_on_current_stream() remembers the streams,
  ///   for follow_users().
  void attach_shard(bool notes_users = false);

  /// For a group that is not paged: its shard is being written to from now on.
  void begin_update();
  bool is_under_update() const {
    return under_update_;
  }
  /// The shard may be used again.
  /// @param written after which streams may use it.
  void end_update(runtime::StreamMarks written);

  /// Makes `lane` wait for all uses of the shard by operators and all-gathers
  /// so far.
  void follow_users(const runtime::StreamLane& lane);

  /// Drops the whole weights and returns the slot, marked with the work of all
  /// streams that used it. Ends an all-gather in progress.
  runtime::Slot reshard(const WaitCheck& check);

  /// Copies this rank's slice of the unsharded weights into the shard, after
  /// they were written in place. Master weights of elements that were not
  /// written keep their precision.
  void write_back();

  /// The whole weights while unsharded: [padded_numel].
  const at::Tensor& full() const {
    return full_;
  }

  /// @throws tessera::Error naming a parameter whose storage or key was
  ///   replaced without the engine's knowledge.
  void check_identity() const;

  /// Ends paging: every storage gets memory of its own and its original dtype,
  /// filled from `full` ([padded_numel], any dtype). Ends an all-gather in
  /// progress.
  /// @return the slot, if there was one.
  runtime::Slot restore(const at::Tensor& full, const WaitCheck& check);

  /// Makes autograd refuse to use tensors that it saved of the old values.
  void bump_versions();

  /// Returns whether the whole weights are in a buffer outside of the arena.
  bool slot_is_outside() const {
    return slot_.defined() && slot_.offset < 0;
  }
  /// In the list of pages.
  int number() const {
    return spec_.number;
  }

 private:
  friend class GatherScopes; // through which all others read and write values
  /// The master weights in memory, on the parameters' device: the tensor
  /// itself, or a copy. Blocks.
  at::Tensor read_master() const;
  /// Stores the result of read_master() after it was written to, and rounds it
  /// into the shard. Blocks.
  void write_master(const at::Tensor& values);
  /// The blocks that arrive of the last gather, if it has any.
  const std::optional<runtime::BlockFormat>& blocks() const;
  void begin_gather(const at::Tensor& shard);
  void finish_gather(const WaitCheck& check);
  /// Of the gather in progress, on the lane: what arrived becomes weights.
  void receive();
  /// The place of weights in the slot: [padded_numel].
  at::Tensor full_in_slot() const;
  /// What ranks send, of a gather in blocks: uint8.
  at::Tensor wire_in_slot() const;
  /// The place of this rank's shard in the slot, as it rests.
  at::Tensor shard_in_slot() const;
  runtime::Slot take_slot();
  runtime::RestingTensor make_shard(
      const char* label,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype,
      MemoryLedger& ledger,
      runtime::ShardStore* store) const;
  /// The shard's values in memory, on the parameters' device: [shard_numel],
  /// dtype(). The tensor itself, or a copy.
  at::Tensor load_values() const;
  /// Makes the shard rest with these values.
  void store_values(const at::Tensor& values);
  /// This rank's part of the flat buffer.
  runtime::FlatSpan local_span() const {
    return spec_.shard();
  }
  at::Tensor local_slice(const at::Tensor& full) const;
  void attach(const at::Tensor& full);
  void detach();
  void take_slice(
      const c10::Storage& storage,
      int64_t begin,
      const at::Tensor& shard,
      const at::Tensor& master);
  at::Tensor slice_of(const c10::Storage& storage, int64_t first, int64_t numel)
      const;
  std::vector<c10::Storage> retype(const std::vector<c10::Storage>& storages);

  PageSpec spec_;
  PageInfo info_;
  std::vector<std::unique_ptr<PagedStorage>> storages_;
  runtime::RestingTensor shard_;
  runtime::RestingTensor master_; ///< if it has its own
  std::string loss_; ///< why the values were lost; empty: they were not
  at::Tensor full_;
  runtime::Slot slot_;
  runtime::PendingTransfer
      arriving_; ///< transfer of the shard to its place in the slot
  GatherFormat format_ = GatherFormat::kOfPage; ///< of the last gather
  at::Tensor wire_; ///< what is decoded when it ends
  bool reading_ = false; ///< as above, and the all-gather is not issued yet
  Communicator* communicator_ = nullptr; ///< of the last gather
  PendingCollective gather_;
  const runtime::StreamLane* lane_ = nullptr; ///< of the last gather
  runtime::StreamMarks ready_; ///< after the all-gather or the last update
  runtime::StreamMarks gathered_; ///< after the last one, which read the shard
  runtime::StreamSet users_; ///< streams that have waited for it
  bool notes_users_ = false; ///< of a group that is not sharded
  bool under_update_ = false; ///< [Note: shards under update]
  Residency residency_ = Residency::kSharded;
};

} // namespace tessera::sharding

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardAccess` gives an update the tensors of one group, on whichever tiers
// they rest.

#include "tessera/engine/optim/state_stage.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/sharding/pages/gradient_bucket.h"
#include "tessera/sharding/pages/param_group.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::engine {

/// The tensors of one group's shard during an update: [shard_numel] each, on
/// one device, except for a master that is to be streamed to it.
struct ShardTensors {
  at::Tensor master; ///< float32 or float64; updated
  at::Tensor gradient; ///< master's dtype, bfloat16 or float16
  /// Receives the rounded master; undefined if nothing is to be rounded.
  at::Tensor low_precision;
};

/// Where and in which types a page is updated, and what of it passes through
/// host memory for that: known before the page has memory.
class UpdateSite {
 public:
  /// @param page must outlive this object.
  /// @param tiers on which its shards rest.
  /// @param on_device whether updates run on the device of the parameters, else
  ///   on the CPU.
  /// @throws tessera::Error if the parameters are not floating-point.
  UpdateSite(
      const sharding::PageSpec& page,
      const sharding::ShardTiers& tiers,
      bool on_device);

  /// The device on which updates run.
  at::Device device() const {
    return device_;
  }
  /// Whether updates run on the device of the parameters while master weights
  /// rest elsewhere and are given as they rest there.
  bool streams_master() const {
    return on_device_ && page_.has_own_master &&
           tiers_.state != MemoryTier::kDevice;
  }
  /// The dtype of the master and of state: float64 for float64 weights, else
  /// float32.
  at::ScalarType dtype() const {
    return page_.master_dtype() == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// Whether updates write rounded weights in addition to the master.
  bool rounds() const {
    return page_.dtype != dtype();
  }
  /// The tiers of the page's shards.
  const sharding::ShardTiers& tiers() const {
    return tiers_;
  }
  /// The bytes that the shards take of a buffer of the StateStage.
  int64_t stage_bytes() const;

 private:
  at::ScalarType gradient_dtype() const;

  const sharding::PageSpec& page_;
  sharding::ShardTiers tiers_;
  bool on_device_;
  at::Device device_;
};

/// Hides where the group's tensors rest. Master weights may be the group's own
/// or not exist (each update then widens the shard and rounds it back), and
/// each of weights, gradients and master weights may be on another tier. What
/// cannot be used where it rests passes through a buffer of the StateStage. If
/// the device updates, master weights that rest elsewhere are given in host
/// memory.
class ShardAccess {
 public:
  /// All must outlive this object.
  ShardAccess(
      const UpdateSite& site,
      sharding::ParamGroup& group,
      const sharding::GradientBucket& bucket,
      const StreamedUpdate& streamed)
      : site_(site), group_(group), bucket_(bucket), streamed_(streamed) {}

  /// Begins to fetch what is not on the site's device, except the gradient.
  /// @param buffer of UpdateSite::stage_bytes(); may be null if that is 0.
  void begin_fetch(StateStage::Buffer* buffer);
  /// Begins to fetch the gradient. Call it once, after begin_fetch().
  /// @param gradient the shard() of the bucket.
  void begin_gradient(
      const runtime::RestingTensor& gradient,
      StateStage::Buffer* buffer);
  /// Returns the tensors for an update, after both functions above. Blocks
  /// until those in host memory are complete; what is copied to the device is
  /// complete in the order of the current stream.
  ShardTensors tensors();
  /// Ends the access without an update. Blocks.
  void forget();
  /// After the update: begins to copy what rests elsewhere back. The buffer is
  /// free again when the returned transfers have ended.
  /// @param written the stretches that were updated.
  std::vector<runtime::PendingTransfer> begin_return(
      const std::vector<runtime::FlatSpan>& written);
  /// The part of begin_return() for weights on another tier.
  /// @param values of the group's dtype; if updates round, only the written
  ///   ones are valid, else all.
  runtime::PendingTransfer begin_return_of_shard(
      const at::Tensor& values,
      const std::vector<runtime::FlatSpan>& written);

 private:
  at::Tensor place(
      int64_t numel,
      at::ScalarType dtype,
      StateStage::Buffer* buffer) const;
  at::Tensor fetch(
      const runtime::RestingTensor& from,
      at::ScalarType dtype,
      StateStage::Buffer* buffer);
  at::Tensor fetch_master(StateStage::Buffer* buffer);
  void begin_read(const runtime::RestingTensor& from, const at::Tensor& into);

  const UpdateSite& site_;
  sharding::ParamGroup& group_;
  const sharding::GradientBucket& bucket_;
  const StreamedUpdate& streamed_;
  ShardTensors open_;
  std::vector<runtime::PendingTransfer> arriving_on_host_;
  std::vector<runtime::PendingTransfer> arriving_on_device_;
};

} // namespace tessera::engine

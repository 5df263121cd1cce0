// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an update reads and writes of one group, wherever it rests.

#include "tessera/engine/optim/state_stage.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/sharding/gradient_bucket.h"
#include "tessera/sharding/param_group.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// The tensors of one group's shard during an update: [shard_numel] each, on
/// one device, but for a master that is to be streamed to it.
struct ShardTensors {
  at::Tensor master; ///< float32 or float64; updated
  at::Tensor gradient; ///< of master's dtype, bfloat16 or float16
  /// Receives the rounded master; undefined where there is nothing to round.
  at::Tensor low_precision;
};

/// Hides where the group's tensors rest: master weights may be the group's own
/// or nowhere (training without them: then each update widens the shard and
/// rounds it back), and each of weights, gradients and master weights may be on
/// another tier. What cannot be worked on where it rests passes through a
/// buffer of the stage. Where the device updates, master weights that rest
/// elsewhere are given in host memory.
class ShardAccess {
 public:
  /// @param group, bucket outlive this object. @param on_device updates happen
  /// on the parameters' device, else on the CPU.
  /// @throws tessera::Error when the parameters are not floating-point.
  ShardAccess(ParamGroup& group, const GradientBucket& bucket, bool on_device);

  /// Where updates happen.
  at::Device device() const {
    return device_;
  }
  /// Updates happen on the parameters' device, and master weights are given as
  /// they rest elsewhere.
  bool streams_master() const {
    return on_device_ && group_.has_own_master() &&
           group_.master().tier() != MemoryTier::kDevice;
  }
  /// Of the master and of state: float64 for float64 weights, else float32.
  at::ScalarType dtype() const;

  /// What the two begin_ functions take of a buffer.
  int64_t stage_bytes() const;

  /// Begins to bring in what is not on device(), but for the gradient.
  /// @param buffer of stage_bytes(); may be null when that is 0.
  void begin_fetch(StateStage::Buffer* buffer);
  /// Begins to bring it in, once, after begin_fetch(). @param gradient the
  /// bucket's shard().
  void begin_gradient(
      const RestingTensor& gradient,
      StateStage::Buffer* buffer);
  /// The tensors for an update, after both. Blocks until they are there.
  ShardTensors tensors();
  /// Ends what was begun without an update. Blocks.
  void forget();
  /// After the update: begins to bring back what rests elsewhere. A buffer's
  /// user has ended when the returned transfers have.
  /// @param written the stretches that were updated.
  std::vector<PendingTransfer> begin_return(
      const std::vector<FlatSpan>& written);
  /// The part of that for weights on another tier.
  /// @param values of the group's type; only the written ones count where they
  ///   were rounded, else all.
  PendingTransfer begin_return_of_shard(
      const at::Tensor& values,
      const std::vector<FlatSpan>& written);

 private:
  /// Whether updates write rounded weights beside the master.
  bool rounds() const;
  at::ScalarType gradient_dtype() const;
  at::Tensor place(
      int64_t numel,
      at::ScalarType dtype,
      StateStage::Buffer* buffer) const;
  at::Tensor fetch(
      const RestingTensor& from,
      at::ScalarType dtype,
      StateStage::Buffer* buffer);
  at::Tensor fetch_master(StateStage::Buffer* buffer);

  ParamGroup& group_;
  const GradientBucket& bucket_;
  bool on_device_;
  at::Device device_;
  ShardTensors open_;
  std::vector<PendingTransfer> arriving_;
};

} // namespace tessera

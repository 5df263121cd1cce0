// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an update reads and writes of one group, wherever it rests.

#include "tessera/engine/optim/state_stage.h"
#include "tessera/engine/optim/state_tiers.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/sharding/gradient_bucket.h"
#include "tessera/sharding/param_group.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// The tensors of one group's shard during an update: [shard_numel] each, all
/// on one device.
struct ShardTensors {
  at::Tensor master; ///< float32 or float64; updated
  at::Tensor gradient; ///< of master's dtype, bfloat16 or float16
  /// Receives the rounded master; undefined where there is nothing to round.
  at::Tensor low_precision;
};

/// Hides where the master weights are: in the group, stored on another tier,
/// or nowhere (training without master weights: then each update widens the
/// shard and rounds it back). A group whose state is not on the parameters'
/// device is updated by the CPU; what comes from elsewhere and goes back passes
/// through a buffer of the stage.
class ShardAccess {
 public:
  /// @param group, bucket outlive this object. @param tier of the group's
  /// state.
  /// @throws tessera::Error when the parameters are not floating-point.
  ShardAccess(ParamGroup& group, const GradientBucket& bucket, MemoryTier tier);

  /// Where updates happen.
  at::Device device() const {
    return device_;
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
  void begin_gradient(const at::Tensor& gradient, StateStage::Buffer* buffer);
  /// The tensors for an update, after both. Blocks until they are there.
  ShardTensors tensors();
  /// Ends what was begun without an update. Blocks.
  void forget();
  /// After the update: begins to bring back what rests elsewhere. A buffer's
  /// user has ended when the returned transfers have.
  /// @param written the stretches that were updated.
  std::vector<PendingTransfer> begin_return(
      const std::vector<FlatSpan>& written);

 private:
  bool is_remote() const;
  bool stages_master() const;
  bool rounds_in_kernel() const;
  at::ScalarType gradient_dtype() const;
  at::Tensor fetch(
      const at::Tensor& from,
      at::ScalarType dtype,
      StateStage::Buffer* buffer);

  ParamGroup& group_;
  const GradientBucket& bucket_;
  at::Device device_;
  ShardTensors open_;
  std::vector<PendingTransfer> arriving_;
};

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an update reads and writes of one group, where the state rests.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/offload/host_mirror.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/gradient_bucket.h"
#include "tessera/sharding/param_group.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera {

/// The tensors of one group's shard during an update: [shard_numel] each, all
/// on one device.
struct ShardTensors {
  at::Tensor master; ///< float32 or float64; updated
  at::Tensor gradient; ///< of master's dtype, bfloat16 or float16
  /// Receives the rounded master; undefined where there is nothing to round.
  at::Tensor low_precision;
};

/// Hides where the master weights are: in the group, in a host copy for
/// parameters of another device, or nowhere (training without master weights:
/// then each update widens the shard and rounds it back).
class ShardAccess {
 public:
  /// @param group, bucket outlive this object.
  /// @throws tessera::Error when the parameters are not floating-point.
  ShardAccess(
      ParamGroup& group,
      const GradientBucket& bucket,
      StatePlacement placement);

  /// Where state rests.
  at::Device device() const {
    return device_;
  }
  /// Of the master and of state: float64 for float64 weights, else float32.
  at::ScalarType dtype() const;

  /// Bytes of the host copy.
  int64_t bytes() const;
  void allocate(MemoryLedger& ledger);

  /// The master weights where they rest: [shard_numel].
  const at::Tensor& master() const {
    return mirror_ ? mirror_->tensor() : group_.master();
  }
  /// After they were written from outside: the group gets them.
  void master_was_written();

  /// The tensors for an update. On a mirrored group it blocks.
  ShardTensors begin();
  /// After the update: what rests elsewhere goes back to the group.
  void end();

 private:
  bool mirrored() const;
  bool rounds_in_kernel() const;

  ParamGroup& group_;
  const GradientBucket& bucket_;
  at::Device device_;
  std::optional<HostMirror> mirror_;
  uint64_t write_backs_ = 0; ///< of the group, when the mirror was loaded
};

} // namespace tessera

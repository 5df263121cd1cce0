// SPDX-License-Identifier: Apache-2.0
#pragma once
// A second copy of a group's weights and optimizer state, in which an update
// can be made that may turn out not to be wanted.

#include "tessera/engine/optim/update_method.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// Moments and own master weights rest on the same tier as the state that they
/// are a copy of, and take its place when the update turns out to be wanted:
/// what was the state is the copy then. New weights wait in host memory and are
/// copied to the shard. For a part that the CPU updates and that is the only
/// one of its group. All functions but bytes() on one thread at a time.
class StateShadow {
 public:
  /// Both outlive this object.
  StateShadow(UpdateContext& context, UpdateMethod& method, ShardPart& part);

  void add_bytes(TierBytes& bytes) const;
  /// @throws tessera::Error when a tier has no room.
  void allocate();

  /// Makes the update here; the state stays as it is. Blocks.
  /// @param meanwhile called when all that it needs has come.
  void update(const PartUpdate& update, const std::function<void()>& meanwhile);

  /// Makes the last update() the state. Device copies are issued to the current
  /// stream. Otherwise blocks.
  void commit(const PartUpdate& update);

 private:
  ParamGroup& group() const;
  int64_t shard_numel() const;
  at::Tensor take_host(
      const std::string& name,
      int64_t numel,
      at::ScalarType dtype);
  RestingTensor take(
      const std::string& what,
      int64_t numel,
      at::ScalarType dtype);
  std::string name_of(const std::string& what) const;
  void redirect(PartTensors& tensors, PartTensors& before);
  void copy_weights(const std::vector<SpanUpdate>& spans);

  UpdateContext& context_;
  UpdateMethod& method_;
  ShardPart& part_;
  std::vector<RestingTensor> state_;
  RestingTensor master_; ///< of the group's own master weights
  at::Tensor weights_; ///< [shard_numel] of the group's dtype
  std::vector<PendingTransfer> leaving_; ///< from weights_
};

} // namespace tessera

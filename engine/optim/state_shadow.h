// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StateShadow` is a second copy of a group's weights and optimizer state, in
// which an update can be computed before it is known whether it is needed.

#include "tessera/engine/optim/update_method.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::engine {

/// Moments and separate master weights rest on the same tier as the state that
/// they copy, and are swapped with it when the update is committed. New weights
/// wait in host memory and are copied to the shard. For a part that the CPU
/// updates and that is the only one of its group. All functions except
/// add_bytes() are called by one thread at a time.
class StateShadow {
 public:
  /// Both must outlive this object.
  StateShadow(UpdateContext& context, UpdateMethod& method, ShardPart& part);

  void add_bytes(TierBytes& bytes) const;
  /// @throws tessera::Error if a tier has no room.
  void allocate();

  /// Computes the update in this copy and leaves the state unchanged. Blocks.
  /// @param meanwhile called when all tensors that it needs have arrived.
  void update(const PartUpdate& update, const std::function<void()>& meanwhile);

  /// Makes the last update() the state. Copies on a device are issued to the
  /// current stream; otherwise blocks.
  void commit(const PartUpdate& update);

 private:
  const sharding::PageSpec& page() const;
  int64_t shard_numel() const;
  at::Tensor take_host(
      const std::string& name,
      int64_t numel,
      at::ScalarType dtype);
  runtime::RestingTensor take(
      const std::string& what,
      int64_t numel,
      at::ScalarType dtype);
  std::string name_of(const std::string& what) const;
  void redirect(PartTensors& tensors, PartTensors& before);
  void copy_weights(const std::vector<SpanUpdate>& spans);

  UpdateContext& context_;
  UpdateMethod& method_;
  ShardPart& part_;
  std::vector<runtime::RestingTensor> state_;
  runtime::RestingTensor master_; ///< of the group's own master weights
  at::Tensor weights_; ///< [shard_numel] of the group's dtype
  std::vector<runtime::PendingTransfer> leaving_; ///< from weights_
};

} // namespace tessera::engine

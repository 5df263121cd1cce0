// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SpeculativeState` is a second copy of a page's weights and optimizer state,
// in which an update can be computed before it is known whether it is needed.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/updates/state_access.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::offload {

/// Moments and separate master weights rest on the same tier as the state that
/// they copy, and are swapped with it when the update is committed. New weights
/// wait in host memory and are copied to the shard. For state that the CPU
/// updates, and that is the only one of its page. All functions except
/// add_bytes() are called by one thread at a time.
class SpeculativeState {
 public:
  /// @param state must outlive this object.
  explicit SpeculativeState(StateAccess& state) : state_(state) {}

  void add_bytes(TierBytes& bytes) const;
  /// @param store of the page's state; null: it is in the memory of the CPU.
  /// @throws tessera::Error if a tier has no room.
  void allocate(HostMemory& memory, runtime::ShardStore* store);

  /// Computes the update in this copy and leaves the state unchanged. Blocks.
  /// @param meanwhile called when all tensors that it needs have arrived.
  void update(
      const StateUpdate& update,
      const std::function<void()>& meanwhile);

  /// Makes the last update() the state. Copies on a device are issued to the
  /// current stream; otherwise blocks.
  void commit(const StateUpdate& update);

 private:
  const UpdatedShard& shard() const {
    return state_.site().shard();
  }
  std::string name_of(const std::string& label) const;
  void redirect(ShardTensors& tensors, ShardTensors& before);
  void copy_weights(const StateUpdate& update);

  StateAccess& state_;
  std::vector<runtime::RestingTensor> copies_; ///< of the state
  runtime::RestingTensor master_; ///< of the page's own master weights
  at::Tensor weights_; ///< [shard_numel] of the weights' type
  std::vector<runtime::PendingTransfer> leaving_; ///< from weights_
};

} // namespace tessera::offload

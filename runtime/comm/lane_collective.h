// SPDX-License-Identifier: Apache-2.0
#pragma once
// A collective beside the stream that computes.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/memory/stream_lane.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera {

/// A collective under way on a lane. wait() must be called before its tensor is
/// touched; it keeps the tensor alive until then.
class LaneCollective {
 public:
  LaneCollective() = default;

  /// Issues a collective to `lane`, behind what was issued to the current
  /// stream.
  /// @param issue calls one of Communicator's; its tensors are to stay as they
  ///     are until wait().
  /// @param tensor kept alive, with those that `issue` has.
  /// @param lane outlives this.
  LaneCollective(
      const std::function<PendingCollective()>& issue,
      at::Tensor tensor,
      const StreamLane& lane);

  /// Blocks until it is done (CPU), or makes the current stream wait for it
  /// (CUDA). @throws tessera::Error as PendingCollective::wait().
  void wait();

 private:
  PendingCollective pending_;
  at::Tensor tensor_;
  const StreamLane* lane_ = nullptr;
  StreamMarks issued_; ///< of the lane, where nothing else is to be waited for
};

} // namespace tessera

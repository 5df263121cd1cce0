// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LaneCollective` runs a collective on a stream next to the compute stream.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/streams/stream_lane.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::runtime {

/// A collective in progress on a lane. Call wait() before touching its tensor;
/// the handle keeps the tensor alive until then.
class LaneCollective {
 public:
  LaneCollective() = default;

  /// Issues a collective on `lane`, after the work already issued to the
  /// current stream.
  /// @param issue calls a collective of Communicator; its tensors must not
  ///   change until wait().
  /// @param tensor is kept alive, as are those that `issue` captures.
  /// @param lane must outlive this object.
  LaneCollective(
      const std::function<PendingCollective()>& issue,
      at::Tensor tensor,
      const StreamLane& lane);

  /// Receives into new memory of the lane, without waiting for the work already
  /// issued to the current stream. The memory is used on that stream.
  /// @param issue as above, for the tensor that `make` returns.
  static LaneCollective into_new(
      const std::function<at::Tensor()>& make,
      const std::function<PendingCollective(const at::Tensor&)>& issue,
      const StreamLane& lane);

  const at::Tensor& tensor() const {
    return tensor_;
  }

  /// Blocks until the collective is done (CPU), or makes the current stream
  /// wait for it (CUDA).
  /// @param check as in PendingCollective::wait().
  /// @throws tessera::Error as PendingCollective::wait().
  void wait(const WaitCheck& check = {});

 private:
  PendingCollective pending_;
  at::Tensor tensor_;
  const StreamLane* lane_ = nullptr;
  StreamMarks issued_; ///< of the lane, if there is nothing else to wait for
};

} // namespace tessera::runtime

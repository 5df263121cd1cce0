// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/lane_collective.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace tessera::runtime {

LaneCollective::LaneCollective(
    const std::function<PendingCollective()>& issue,
    at::Tensor tensor,
    const StreamLane& lane)
    : tensor_(std::move(tensor)), lane_(&lane) {
  lane.follow_current();
  const StreamLane::Scope on_lane(lane);
  pending_ = issue();
  if (!pending_.pending()) {
    issued_ = lane.mark();
  }
}

LaneCollective LaneCollective::into_new(
    const std::function<at::Tensor()>& make,
    const std::function<PendingCollective(const at::Tensor&)>& issue,
    const StreamLane& lane) {
  const auto user = current_stream(lane.device());
  LaneCollective received;
  received.lane_ = &lane;
  const StreamLane::Scope on_lane(lane);
  received.tensor_ = make();
  if (user) {
    // It returns to the lane when the user's work with it is done.
    c10::impl::VirtualGuardImpl(lane.device().type())
        .recordDataPtrOnStream(received.tensor_.storage().data_ptr(), *user);
  }
  received.pending_ = issue(received.tensor_);
  if (!received.pending_.pending()) {
    received.issued_ = lane.mark();
  }
  return received;
}

void LaneCollective::wait(const WaitCheck& check) {
  if (lane_ == nullptr) {
    return;
  }
  if (pending_.pending()) {
    const StreamLane::Scope on_lane(*lane_);
    pending_.wait(check);
    issued_ = lane_->mark();
  }
  issued_.block_current(lane_->device());
  lane_ = nullptr;
  tensor_ = at::Tensor();
}

} // namespace tessera::runtime

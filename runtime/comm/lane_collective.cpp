// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/lane_collective.h"

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

void LaneCollective::wait() {
  if (lane_ == nullptr) {
    return;
  }
  if (pending_.pending()) {
    const StreamLane::Scope on_lane(*lane_);
    pending_.wait();
    issued_ = lane_->mark();
  }
  issued_.block_current(lane_->device());
  lane_ = nullptr;
  tensor_ = at::Tensor();
}

} // namespace tessera::runtime

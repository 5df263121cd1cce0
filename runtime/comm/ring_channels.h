// SPDX-License-Identifier: Apache-2.0
#pragma once
// Point-to-point transfers between neighbours.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/lane_collective.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// One-way channels between ranks that follow each other in a ring: each rank
/// and the next, the last and the first, in both directions. A channel is a
/// queue: what is sent first is received first. Both ends know what is sent:
/// there are no sizes in it. Of two ranks each is the other's neighbour on both
/// sides, over one channel in each direction.
///
/// For tensors of one device, and of the CPU. On a device with streams every
/// channel has a lane of its own, so that transfers overlap with computation
/// and with each other, and the host waits for none of them. Used by one
/// thread.
class RingChannels {
 public:
  /// Collective over the job: every rank calls it in the same order among its
  /// other communicators, with the ring that it is in. Blocks until the
  /// neighbours have called it.
  /// @param ranks the ring, each once, this rank among them.
  /// @param device of the tensors.
  RingChannels(
      World& world,
      const std::string& name,
      std::vector<int> ranks,
      at::Device device = at::kCPU);

  at::Device device() const {
    return device_;
  }

  /// This rank's place in the ring.
  int index() const {
    return index_;
  }
  int size() const {
    return static_cast<int>(ranks_.size());
  }

  /// Starts sending to a neighbour. Does not block; the tensor stays as it is
  /// until the transfer has been waited for.
  /// @param tensor contiguous.
  /// @param to place in the ring.
  /// @param what names the transfer in errors.
  LaneCollective send(const at::Tensor& tensor, int to, std::string what);

  /// Starts receiving from a neighbour into `tensor`, contiguous and of the
  /// sent one's size and type. Does not block.
  LaneCollective receive(const at::Tensor& tensor, int from, std::string what);

 private:
  /// Of one direction between two ranks.
  struct Channel {
    // A group of two in which only one ever sends: all backends have
    // broadcasts.
    std::unique_ptr<Communicator> group;
    StreamLane lane;
  };
  /// By sender and receiver, as places in the ring.
  using Channels = std::map<std::pair<int, int>, Channel>;

  Channels connect(
      World& world,
      const std::string& name,
      const std::string& key,
      at::Device device) const;
  LaneCollective transfer(
      const at::Tensor& tensor,
      int from,
      int to,
      std::string what);

  std::vector<int> ranks_;
  int index_ = 0;
  at::Device device_;
  Channels channels_;
  Channels cpu_channels_; ///< where the device is another
};

} // namespace tessera

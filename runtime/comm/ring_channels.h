// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RingChannels` sends and receives tensors between neighbors in a ring of
// ranks.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/lane_collective.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// One-way channels in both directions between ranks that are neighbors in a
/// ring, including the last and the first. A channel is a first-in, first-out
/// queue. Sizes are not transmitted: both ends must know them. With two ranks,
/// each is both neighbors of the other, and there is one channel per direction.
///
/// Transfers tensors of one device, and CPU tensors. On a device with streams
/// every channel has its own lane, so transfers overlap with computation and
/// with each other, and do not block the host. Not thread-safe.
class RingChannels {
 public:
  /// Collective over the job: every rank calls it with its own ring, in the
  /// same order relative to its other communicators. Blocks until the neighbors
  /// have called it.
  /// @param ranks the ring, each rank once, including this one.
  /// @param device of the tensors.
  RingChannels(
      World& world,
      const std::string& name,
      std::vector<int> ranks,
      at::Device device);

  at::Device device() const {
    return device_;
  }

  /// Position of this rank in the ring.
  int index() const {
    return index_;
  }
  int size() const {
    return static_cast<int>(ranks_.size());
  }

  /// Starts sending to a neighbor. Does not block. The tensor must not change
  /// until the transfer has been waited for.
  /// @param tensor contiguous.
  /// @param to position in the ring.
  /// @param label names the transfer in errors.
  LaneCollective send(const at::Tensor& tensor, int to, std::string label);

  /// Starts receiving from a neighbor into `tensor`, which must be contiguous
  /// and have the size and dtype of the tensor sent. Does not block.
  LaneCollective receive(const at::Tensor& tensor, int from, std::string label);

  /// Starts receiving into a new tensor, LaneCollective::tensor(), which is
  /// used on the current stream. Does not wait for what was issued to that
  /// before: the transfer can overlap with it.
  LaneCollective receive_new(
      at::IntArrayRef sizes,
      const at::TensorOptions& options,
      int from,
      std::string label);

 private:
  /// One direction between two ranks.
  struct Channel {
    // A group of two ranks of which only one sends, since every backend has
    // broadcast.
    std::unique_ptr<Communicator> group;
    StreamLane lane;
  };
  /// By sender and receiver, as positions in the ring.
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
      std::string label);
  /// @throws tessera::Error if there is none for tensors of `device`.
  const Channel& channel(
      at::Device device,
      int from,
      int to,
      const std::string& label) const;
  PendingCollective issue(
      const Channel& channel,
      const at::Tensor& tensor,
      bool sends,
      std::string label) const;

  std::vector<int> ranks_;
  int index_ = 0;
  at::Device device_;
  Channels channels_;
  Channels cpu_channels_; ///< if the device is not the CPU
};

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Point-to-point transfers between neighbours.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"

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
/// For CPU tensors. Used by one thread.
class RingChannels {
 public:
  /// Collective over the job: every rank calls it in the same order among its
  /// other communicators, with the ring that it is in. Blocks until the
  /// neighbours have called it.
  /// @param ranks the ring, each once, this rank among them.
  RingChannels(World& world, const std::string& name, std::vector<int> ranks);

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
  PendingCollective send(const at::Tensor& tensor, int to, std::string what);

  /// Starts receiving from a neighbour into `tensor`, contiguous and of the
  /// sent one's size and type. Does not block.
  PendingCollective receive(
      const at::Tensor& tensor,
      int from,
      std::string what);

 private:
  PendingCollective transfer(
      const at::Tensor& tensor,
      int from,
      int to,
      std::string what);

  std::vector<int> ranks_;
  int index_ = 0;
  // By sender and receiver, as places in the ring. A channel is a group of two
  // in which only one ever sends: all backends have broadcasts.
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> channels_;
};

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/ring_channels.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <set>

namespace tessera {

RingChannels::RingChannels(
    World& world,
    const std::string& name,
    std::vector<int> ranks)
    : ranks_(std::move(ranks)) {
  const std::string key = world.unique_name(name);
  const auto own = std::find(ranks_.begin(), ranks_.end(), world.rank());
  TESSERA_CHECK(
      own != ranks_.end(),
      "rank ",
      world.rank(),
      " is not among the ranks of its own ring '",
      name,
      "'.");
  index_ = static_cast<int>(own - ranks_.begin());
  std::set<std::pair<int, int>> wanted;
  for (const int other :
       {(index_ + 1) % size(), (index_ + size() - 1) % size()}) {
    if (other != index_) {
      wanted.insert({index_, other});
      wanted.insert({other, index_});
    }
  }
  // In ascending order on every rank: who waits for a neighbour waits for one
  // that is at an earlier channel, so nobody waits in a circle.
  for (const auto& ends : wanted) {
    std::vector<int> both{
        ranks_[static_cast<size_t>(ends.first)],
        ranks_[static_cast<size_t>(ends.second)]};
    std::sort(both.begin(), both.end());
    channels_[ends] = world.join_group(
        name,
        key + "/" + std::to_string(ends.first) + "-" +
            std::to_string(ends.second),
        at::kCPU,
        both);
  }
}

PendingCollective RingChannels::send(
    const at::Tensor& tensor,
    int to,
    std::string what) {
  return transfer(tensor, index_, to, std::move(what));
}

PendingCollective RingChannels::receive(
    const at::Tensor& tensor,
    int from,
    std::string what) {
  return transfer(tensor, from, index_, std::move(what));
}

PendingCollective RingChannels::transfer(
    const at::Tensor& tensor,
    int from,
    int to,
    std::string what) {
  const auto channel = channels_.find({from, to});
  TESSERA_CHECK(
      channel != channels_.end(),
      what,
      ": there is no channel from ",
      from,
      " to ",
      to,
      " in a ring of ",
      size(),
      " at place ",
      index_,
      "; only neighbours have one.");
  TESSERA_CHECK(
      tensor.is_cpu() && tensor.is_contiguous(),
      what,
      ": a channel takes contiguous CPU tensors, and got one of sizes ",
      tensor.sizes(),
      " and strides ",
      tensor.strides(),
      " on ",
      tensor.device(),
      ".");
  const bool sends = from == index_;
  const int own = channel->second->rank();
  // Not every backend knows every type.
  return channel->second->broadcast(
      tensor.view({-1}).view(at::kByte),
      sends ? own : 1 - own,
      std::move(what));
}

} // namespace tessera

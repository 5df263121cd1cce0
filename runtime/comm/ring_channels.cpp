// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/ring_channels.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <set>

namespace tessera::runtime {

RingChannels::RingChannels(
    World& world,
    const std::string& name,
    std::vector<int> ranks,
    at::Device device)
    : ranks_(std::move(ranks)), device_(device) {
  const std::string key = world.unique_name(name);
  const auto own = std::find(ranks_.begin(), ranks_.end(), world.rank());
  TESSERA_CHECK(
      own != ranks_.end(),
      "rank {} is not among the ranks of its own ring '{}'.",
      world.rank(),
      name);
  index_ = static_cast<int>(own - ranks_.begin());
  channels_ = connect(world, name, key, device);
  if (!device.is_cpu()) {
    cpu_channels_ = connect(world, name, key + "/cpu", at::kCPU);
  }
}

RingChannels::Channels RingChannels::connect(
    World& world,
    const std::string& name,
    const std::string& key,
    at::Device device) const {
  std::set<std::pair<int, int>> wanted;
  for (const int other :
       {(index_ + 1) % size(), (index_ + size() - 1) % size()}) {
    if (other != index_) {
      wanted.insert({index_, other});
      wanted.insert({other, index_});
    }
  }
  // In ascending order on every rank: a rank that waits for a neighbor waits
  // for one at an earlier channel, so there is no circular wait.
  Channels channels;
  for (const auto& ends : wanted) {
    std::vector<int> both{
        ranks_[static_cast<size_t>(ends.first)],
        ranks_[static_cast<size_t>(ends.second)]};
    std::sort(both.begin(), both.end());
    channels.emplace(
        ends,
        Channel{
            world.join_group(
                name,
                key + "/" + std::to_string(ends.first) + "-" +
                    std::to_string(ends.second),
                device,
                both),
            StreamLane(device)});
  }
  return channels;
}

LaneCollective RingChannels::send(
    const at::Tensor& tensor,
    int to,
    std::string what) {
  return transfer(tensor, index_, to, std::move(what));
}

LaneCollective RingChannels::receive(
    const at::Tensor& tensor,
    int from,
    std::string what) {
  return transfer(tensor, from, index_, std::move(what));
}

LaneCollective RingChannels::transfer(
    const at::Tensor& tensor,
    int from,
    int to,
    std::string what) {
  const bool on_device = tensor.device() == device_;
  const Channels& channels = on_device ? channels_ : cpu_channels_;
  const auto channel = channels.find({from, to});
  TESSERA_CHECK(
      channel != channels.end() || (!on_device && !tensor.is_cpu()),
      "{}: there is no channel from {} to {} in the ring of {} ranks, at index {}; only neighbors are connected.",
      what,
      from,
      to,
      size(),
      index_);
  TESSERA_CHECK(
      (on_device || (tensor.is_cpu() && !device_.is_cpu())) &&
          tensor.is_contiguous(),
      "{}: a channel takes contiguous tensors on {} or the CPU, but got one of sizes {} and strides {} on {}.",
      what,
      device_,
      tensor.sizes(),
      tensor.strides(),
      tensor.device());
  const bool sends = from == index_;
  Communicator& group = *channel->second.group;
  const int own = group.rank();
  return {
      [&] {
        // Not every backend supports every dtype.
        return group.broadcast(
            tensor.view({-1}).view(at::kByte),
            sends ? own : 1 - own,
            std::move(what));
      },
      tensor,
      channel->second.lane};
}

} // namespace tessera::runtime

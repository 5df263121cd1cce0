// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/ring_channels.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>

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
  const auto local = std::find(ranks_.begin(), ranks_.end(), world.rank());
  TESSERA_CHECK(
      local != ranks_.end(),
      "rank {} is not among the ranks of its own ring '{}'.",
      world.rank(),
      name);
  index_ = static_cast<int>(local - ranks_.begin());
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
    std::string label) {
  return transfer(tensor, index_, to, std::move(label));
}

LaneCollective RingChannels::receive(
    const at::Tensor& tensor,
    int from,
    std::string label) {
  return transfer(tensor, from, index_, std::move(label));
}

LaneCollective RingChannels::receive_new(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    int from,
    std::string label) {
  const Channel& way = channel(options.device(), from, index_, label);
  return LaneCollective::into_new(
      [&] { return at::empty(sizes, options); },
      [&](const at::Tensor& tensor) {
        return issue(way, tensor, /*sends=*/false, std::move(label));
      },
      way.lane);
}

LaneCollective RingChannels::transfer(
    const at::Tensor& tensor,
    int from,
    int to,
    std::string label) {
  const Channel& way = channel(tensor.device(), from, to, label);
  TESSERA_CHECK(
      tensor.is_contiguous(),
      "{}: a channel takes contiguous tensors, but got one of sizes {} and strides {}.",
      label,
      tensor.sizes(),
      tensor.strides());
  return {
      [&] { return issue(way, tensor, from == index_, std::move(label)); },
      tensor,
      way.lane};
}

const RingChannels::Channel& RingChannels::channel(
    at::Device device,
    int from,
    int to,
    const std::string& label) const {
  const bool on_device = device == device_;
  TESSERA_CHECK(
      on_device || device.is_cpu(),
      "{}: a channel takes tensors on {} or the CPU, but got one on {}.",
      label,
      device_,
      device);
  const Channels& channels = on_device ? channels_ : cpu_channels_;
  const auto found = channels.find({from, to});
  TESSERA_CHECK(
      found != channels.end(),
      "{}: there is no channel from {} to {} in the ring of {} ranks, at index {}; only neighbors are connected.",
      label,
      from,
      to,
      size(),
      index_);
  return found->second;
}

PendingCollective RingChannels::issue(
    const Channel& channel,
    const at::Tensor& tensor,
    bool sends,
    std::string label) const {
  Communicator& group = *channel.group;
  const int local = group.rank();
  // Not every backend supports every dtype.
  return group.broadcast(
      tensor.view({-1}).view(at::kByte),
      sends ? local : 1 - local,
      std::move(label));
}

} // namespace tessera::runtime

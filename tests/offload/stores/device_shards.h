// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shards of a device's tensors at rest on the host and in files: the same bytes
// come back, in the order of the stream.

#include "offload/stores/stores.h"

#include "tessera/runtime/streams/stream_lane.h"

#include <array>
#include <memory>

namespace tessera::tests::device_shards {

/// @param numel of a shard, several of the blocks in which files are read.
inline void expect_stream_order(
    runtime::ShardStore& store,
    at::Device device,
    int64_t numel) {
  const auto shard =
      store.reserve("weights", MemoryPurpose::kParameters, numel, at::kFloat);
  const runtime::StreamLane lane(device);
  const at::Tensor got = at::empty({numel}, device);
  for (int round = 0; round < 3; ++round) {
    // Made on the stream, not yet there when write() is called.
    const at::Tensor sent = at::arange(numel, device).add(round).to(at::kFloat);
    runtime::PendingTransfer writing = shard->write(sent);
    writing.wait();
    at::Tensor sum;
    runtime::PendingTransfer reading;
    {
      const runtime::StreamLane::Scope on_lane(lane);
      lane.follow_current();
      reading = shard->read(got);
      reading.wait_issued();
      sum = got.sub(sent).abs().sum(); // behind the copy, without a wait
    }
    lane.mark().block_current(device);
    EXPECT_EQ(sum.item<float>(), 0) << round;
    reading.wait();
    // After wait() any stream may use it.
    const at::Tensor again = at::empty({numel}, device);
    {
      const runtime::StreamLane::Scope on_lane(lane);
      lane.follow_current();
      shard->read(again).wait();
    }
    EXPECT_TRUE(at::equal(again, sent)) << round;
    if (const at::Tensor resting = shard->in_place(); resting.defined()) {
      EXPECT_TRUE(at::equal(resting, sent.cpu())) << round;
      EXPECT_TRUE(resting.is_pinned());
    }
  }
}

/// A shard that lanes use in place, in turns.
/// @param rounds in which 1 is added; each follows the one before, though
///   nothing else orders the lanes.
/// @return the shard, which lanes may still use.
inline std::unique_ptr<runtime::StoredShard> add_on_lanes(
    runtime::ShardStore& store,
    at::Device device,
    int64_t numel,
    int rounds) {
  auto shard =
      store.reserve("moments", MemoryPurpose::kParameters, numel, at::kFloat);
  const std::array<runtime::StreamLane, 2> lanes{
      runtime::StreamLane(device), runtime::StreamLane(device)};
  for (int round = 0; round < rounds; ++round) {
    const runtime::StreamLane::Scope on_lane(lanes[round % lanes.size()]);
    const at::Tensor resting = shard->in_place_on_stream(device);
    const at::Tensor more = resting.to(device, /*non_blocking=*/true) + 1;
    resting.copy_(more, /*non_blocking=*/true);
    shard->used_on_current_stream(device);
  }
  return shard;
}

inline void expect_order_of_host_store(at::Device device, int64_t numel) {
  MemoryLedger ledger;
  offload::HostMemory memory({.device = device}, ledger);
  offload::HostStore store(memory);
  expect_stream_order(store, device, numel);
}

inline void expect_order_of_nvme_store(at::Device device, int64_t numel) {
  const TemporaryFolder folder;
  MemoryLedger ledger;
  offload::HostMemory memory({.device = device}, ledger);
  offload::NvmeStore store({folder.path(), std::nullopt}, memory, ledger);
  expect_stream_order(store, device, numel);
}

} // namespace tessera::tests::device_shards

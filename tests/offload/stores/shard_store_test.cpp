// SPDX-License-Identifier: Apache-2.0
// What goes into a store comes back, whatever its size, type and alignment,
// and is counted.
#include "offload/stores/stores.h"
#include "tessera/offload/stores/tier_bytes.h"

#include <algorithm>
#include <vector>

namespace tessera::offload::shard_store_test {

namespace {

using namespace tests;

constexpr int64_t kBlock = BlockPipeline::kBlockBytes;

at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn({numel}).to(dtype);
}

/// Several shards of many sizes, written and read in turn.
void expect_round_trips(runtime::ShardStore& store) {
  const std::vector<int64_t> numels = {
      1, 0, 3, 1023, 1024, kBlock / 4, kBlock / 4 + 1, 5 * kBlock / 4 + 77};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    std::vector<std::unique_ptr<runtime::StoredShard>> shards;
    for (const int64_t numel : numels) {
      shards.push_back(
          store.reserve("shard", MemoryPurpose::kOptimizerState, numel, dtype));
      EXPECT_EQ(shards.back()->numel(), numel);
      EXPECT_EQ(shards.back()->dtype(), dtype);
      const at::Tensor fresh = at::full({numel}, 7, dtype);
      shards.back()->read(fresh).wait();
      EXPECT_TRUE(at::equal(fresh, at::zeros({numel}, dtype))) << numel;
    }
    for (int round = 0; round < 3; ++round) {
      // All at the same time; a read right behind its write sees it.
      std::vector<runtime::PendingTransfer> pending;
      std::vector<at::Tensor> sent;
      std::vector<at::Tensor> got;
      for (size_t i = 0; i < shards.size(); ++i) {
        // One element off: not aligned for O_DIRECT.
        const at::Tensor room = at::empty({numels[i] + round}, dtype);
        sent.push_back(random_values(numels[i], dtype, 10 * i + round));
        got.push_back(room.narrow(0, round, numels[i]));
        pending.push_back(shards[i]->write(sent[i]));
        pending.push_back(shards[i]->read(got[i]));
      }
      for (runtime::PendingTransfer& transfer : pending) {
        transfer.wait();
        EXPECT_FALSE(transfer.pending());
      }
      for (size_t i = 0; i < shards.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], sent[i])) << numels[i];
      }
    }
  }
}

} // namespace

TEST(ShardStore, HostKeepsWhatItIsGiven) {
  MemoryLedger ledger;
  HostMemory memory({}, ledger);
  HostStore store(memory);
  expect_round_trips(store);
  const auto shard =
      store.reserve("a", MemoryPurpose::kOptimizerState, 100, at::kFloat);
  shard->in_place().fill_(3);
  const at::Tensor got = at::empty({100});
  shard->read(got).wait();
  EXPECT_TRUE(at::equal(got, at::full({100}, 3.0F)));
}

TEST(ShardStore, NvmeKeepsWhatItIsGiven) {
  NvmeFixture nvme;
  expect_round_trips(nvme.make());
}

TEST(ShardStore, NvmeOverThreadsAndBuffers) {
  NvmeFixture nvme;
  nvme.calls.ring_error = EPERM;
  nvme.calls.refuse_direct = true;
  expect_round_trips(nvme.make());
}

TEST(ShardStore, AlignedTensorsAreReadWhereTheyAre) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  const int64_t numel = 40 * kBlock / 4; // more than what is under way at once
  const auto shard =
      store.reserve("a", MemoryPurpose::kOptimizerState, numel, at::kFloat);
  const at::Tensor sent =
      nvme.memory.allocate("sent", MemoryPurpose::kStaging, numel * 4)
          .view(at::kFloat);
  sent.copy_(random_values(numel, at::kFloat, 1));
  const at::Tensor got =
      nvme.memory.allocate("got", MemoryPurpose::kStaging, numel * 4)
          .view(at::kFloat);
  shard->write(sent).wait();
  shard->read(got).wait();
  EXPECT_TRUE(at::equal(got, sent));
}

TEST(ShardStore, TheFileHasNoNameAndGoesWithTheStore) {
  NvmeFixture nvme;
  nvme.make();
  EXPECT_EQ(nvme.folder.count(), 0u);
}

TEST(ShardStore, CountsByTier) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  HostStore host(nvme.memory);
  const auto bytes = [&](MemoryTier tier) {
    return nvme.ledger.live_bytes(
        tier)[static_cast<size_t>(MemoryPurpose::kOptimizerState)];
  };
  {
    const auto a =
        store.reserve("a", MemoryPurpose::kOptimizerState, 1025, at::kFloat);
    const auto b =
        host.reserve("b", MemoryPurpose::kOptimizerState, 2048, at::kFloat);
    EXPECT_EQ(bytes(MemoryTier::kNvme), 8192);
    EXPECT_EQ(tier_bytes(MemoryTier::kNvme, 1025 * 4), 8192);
    EXPECT_EQ(bytes(MemoryTier::kHost), 8192);
    EXPECT_EQ(bytes(MemoryTier::kDevice), 0);
    TierBytes table{
        nvme.ledger.live_bytes(MemoryTier::kDevice),
        nvme.ledger.live_bytes(MemoryTier::kHost),
        nvme.ledger.live_bytes(MemoryTier::kNvme)};
    expect_parts(
        memory_table("memory", table),
        {"device", "host", "nvme", "staging", "4.00 MiB", "8.00 KiB"});
  }
  EXPECT_EQ(bytes(MemoryTier::kNvme), 0);
  EXPECT_EQ(bytes(MemoryTier::kHost), 0);
}

TEST(ShardStore, RefusesTensorsThatDoNotFit) {
  NvmeFixture nvme;
  NvmeStore& store = nvme.make();
  const auto shard =
      store.reserve("moment", MemoryPurpose::kOptimizerState, 8, at::kFloat);
  expect_parts(
      error_of([&] { shard->read(at::empty({9})); }), {"moment", "8", "[9]"});
  expect_parts(
      error_of([&] { shard->write(at::empty({8}, at::kDouble)); }),
      {"moment", "Double"});
  expect_parts(
      error_of([&] {
        shard->write(at::empty({8, 2}).select(1, 0));
      }),
      {"moment", "contiguous"});
}

} // namespace tessera::offload::shard_store_test

// SPDX-License-Identifier: Apache-2.0
// Shards of CUDA tensors at rest on the host and in files: the same bytes come
// back, in the order of the stream.
#include "offload/stores.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/memory/stream_lane.h"

namespace tessera::offload::shard_store_gpu_test {

namespace {

using namespace tests;

constexpr int64_t kNumel = (int64_t{9} << 20) + 77;

void expect_stream_order(runtime::ShardStore& store) {
  const at::Device device(at::kCUDA, 0);
  const auto shard =
      store.reserve("weights", MemoryPurpose::kParameters, kNumel, at::kFloat);
  const runtime::StreamLane lane(device);
  const at::Tensor got = at::empty({kNumel}, device);
  for (int round = 0; round < 3; ++round) {
    // Made on the stream, not yet there when write() is called.
    const at::Tensor sent =
        at::arange(kNumel, device).add(round).to(at::kFloat);
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
    if (const at::Tensor resting = shard->in_place(); resting.defined()) {
      EXPECT_TRUE(at::equal(resting, sent.cpu())) << round;
      EXPECT_TRUE(resting.is_pinned());
    }
  }
}

} // namespace

class ShardStoreGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runtime::load_cuda_backend().loaded) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
  MemoryLedger ledger_;
};

TEST_F(ShardStoreGpu, Host) {
  HostMemory memory({.device = c10::Device(c10::kCUDA, 0)}, ledger_);
  HostStore store(memory);
  expect_stream_order(store);
}

TEST_F(ShardStoreGpu, Nvme) {
  const TemporaryFolder folder;
  HostMemory memory({.device = c10::Device(c10::kCUDA, 0)}, ledger_);
  NvmeStore store({folder.path(), std::nullopt}, memory, ledger_);
  expect_stream_order(store);
}

} // namespace tessera::offload::shard_store_gpu_test

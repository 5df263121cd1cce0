// SPDX-License-Identifier: Apache-2.0
#include "offload/stores/device_shards.h"
#include "tessera/runtime/core/cuda_backend.h"

namespace tessera::offload::shard_store_gpu_test {

namespace {

constexpr int64_t kNumel = (int64_t{9} << 20) + 77;

} // namespace

class ShardStoreGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runtime::load_cuda_backend().loaded) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
  at::Device device_{at::kCUDA, 0};
};

TEST_F(ShardStoreGpu, Host) {
  tests::device_shards::expect_order_of_host_store(device_, kNumel);
}

TEST_F(ShardStoreGpu, Nvme) {
  tests::device_shards::expect_order_of_nvme_store(device_, kNumel);
}

} // namespace tessera::offload::shard_store_gpu_test

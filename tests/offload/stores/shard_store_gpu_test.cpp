// SPDX-License-Identifier: Apache-2.0
#include "offload/stores/device_shards.h"
#include "support/cuda_test.h"

namespace tessera::offload::shard_store_gpu_test {

namespace {

constexpr int64_t kNumel = (int64_t{9} << 20) + 77;

class ShardStoreGpu : public tests::CudaTest {};

} // namespace

TEST_F(ShardStoreGpu, Host) {
  tests::device_shards::expect_order_of_host_store(
      tests::cuda_device(), kNumel);
}

TEST_F(ShardStoreGpu, Nvme) {
  tests::device_shards::expect_order_of_nvme_store(
      tests::cuda_device(), kNumel);
}

} // namespace tessera::offload::shard_store_gpu_test

// SPDX-License-Identifier: Apache-2.0
// The communicator over NCCL, with one device a rank, and of ranks that share
// one.
#include "runtime/comm/device_collectives.h"
#include "support/cuda_devices.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/cuda_transport.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>

namespace tessera::runtime::communicator_gpu_test {

TEST(NcclCommunicator, WorksForAGroupOfOne) {
  if (tests::count_cuda_devices() < 1) {
    GTEST_SKIP() << "no CUDA device";
  }
  tests::run_ranks(1, [](World&) {
    ASSERT_TRUE(load_cuda_backend().loaded) << load_cuda_backend().reason;
    const std::chrono::milliseconds timeout = std::chrono::minutes(1);
    // A world of one has no back end, so NCCL is asked for directly.
    Communicator comm(
        "test",
        make_nccl_backend(
            c10::make_intrusive<c10d::HashStore>(), {0, 1, 0, timeout}),
        timeout);
    tests::check_collectives(comm, tests::cuda_device());
  });
}

TEST(NcclCommunicator, GathersAndReducesOverAllDevices) {
  const int devices = tests::count_cuda_devices();
  if (devices < 1) {
    GTEST_SKIP() << "no CUDA device";
  }
  if (devices < 2) {
    GTEST_SKIP() << "one CUDA device only; this test wants two";
  }
  tests::run_ranks(devices, [](World& world) {
    ASSERT_TRUE(load_cuda_backend().loaded) << load_cuda_backend().reason;
    const at::Device device(
        tests::cuda_device().type(),
        static_cast<c10::DeviceIndex>(world.local_rank()));
    tests::check_collectives(*world.new_communicator("test", device), device);
  });
}

// NCCL refuses them; a test of several ranks needs no more than one GPU.
TEST(CudaCommunicator, RanksOfOneDeviceShareItsMemory) {
  if (tests::count_cuda_devices() < 1) {
    GTEST_SKIP() << "no CUDA device";
  }
  for (const int ranks : {2, 4}) {
    tests::run_ranks(
        ranks,
        [](World& world) {
          ASSERT_TRUE(load_cuda_backend().loaded) << load_cuda_backend().reason;
          const at::Device device = tests::cuda_device();
          const auto backend = make_cuda_backend(
              world.store(),
              world.rank(),
              world.size(),
              0,
              world.options().timeout,
              "shared device");
          EXPECT_EQ(backend->getBackendName(), "ipc");
          Communicator comm("test", backend, world.options().timeout);
          tests::check_collectives(comm, device);
          // Many turns, and a stream that is busy when they are issued.
          const int64_t numel = 30'000'001;
          const auto options = at::TensorOptions(device);
          const auto noise = at::randn({4096, 4096}, options);
          for (int round = 0; round < 20; ++round) {
            const auto local =
                at::full({numel}, 1.0 * (world.rank() + round), options);
            const auto all = at::empty({world.size(), numel}, options);
            for (int i = 0; i < 5 * world.rank(); ++i) {
              at::matmul(noise, noise);
            }
            comm.all_gather(all, local, "gather");
            local.fill_(-1);
            comm.all_reduce_sum(local, "sum");
            EXPECT_EQ(local.min().item<float>(), -world.size());
            EXPECT_EQ(local.max().item<float>(), -world.size());
            for (int r = 0; r < world.size(); ++r) {
              EXPECT_EQ(all[r].min().item<float>(), r + round);
              EXPECT_EQ(all[r].max().item<float>(), r + round);
            }
          }
        },
        {.limit = std::chrono::seconds(180)});
  }
}

TEST(CudaCommunicator, RanksOfOneDeviceGoThroughTheHostIfToldTo) {
  if (tests::count_cuda_devices() < 1) {
    GTEST_SKIP() << "no CUDA device";
  }
  tests::run_ranks(2, [](World& world) {
    ::setenv("TESSERA_TRANSPORT", "shm", /*overwrite=*/1);
    ASSERT_TRUE(load_cuda_backend().loaded) << load_cuda_backend().reason;
    const at::Device device = tests::cuda_device();
    tests::check_collectives(*world.new_communicator("test", device), device);
  });
}

} // namespace tessera::runtime::communicator_gpu_test

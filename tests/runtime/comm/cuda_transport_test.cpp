// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cuda_transport.h"

#include "support/ranks.h"
#include "tessera/runtime/comm/cpu_transport.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>

namespace tessera::runtime::cuda_transport_test {

namespace {

int made_shared = 0;

c10::intrusive_ptr<c10d::Backend> no_nccl(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    const NcclOptions& /*options*/) {
  TESSERA_FAIL("there is no NCCL here");
}

c10::intrusive_ptr<c10d::Backend> make_shared(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int /*device_index*/,
    std::chrono::milliseconds timeout) {
  ++made_shared;
  return make_gloo_backend(store, rank, size, timeout);
}

c10::intrusive_ptr<c10d::Backend> fail_to_share(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    int /*rank*/,
    int /*size*/,
    int /*device_index*/,
    std::chrono::milliseconds /*timeout*/) {
  ++made_shared;
  TESSERA_FAIL("the device shares nothing");
}

} // namespace

TEST(CudaTransport, FindsRanksThatShareADevice) {
  EXPECT_EQ(ranks_on_one_device({}), "");
  EXPECT_EQ(ranks_on_one_device({"GPU-a"}), "");
  EXPECT_EQ(ranks_on_one_device({"GPU-a", "GPU-b", "GPU-c"}), "");
  EXPECT_EQ(
      ranks_on_one_device({"GPU-a", "GPU-b", "GPU-c", "GPU-b"}),
      "ranks 1 and 3");
}

// What the plug-in registers is made for ranks of one device alone; where it is
// missing, does not work or is not wanted, that of the host is.
TEST(CudaTransport, RanksOfOneDeviceHaveTheBackendOfThePlugIn) {
  tests::run_ranks(3, [](World& world) {
    static int devices = 1;
    replace_cuda_backend({.loaded = true, .device_count = 3});
    register_nccl_backend({&no_nccl, [](int device_index) {
                             return std::to_string(device_index % devices);
                           }});
    const auto make = [&] {
      const auto backend = make_cuda_backend(
          c10::make_intrusive<c10d::PrefixStore>(
              world.unique_name("transport"), world.store()),
          world.rank(),
          world.size(),
          world.rank(),
          world.options().timeout,
          "test");
      return backend->getBackendName();
    };
    const std::string of_host = make();
    EXPECT_NE(of_host, "gloo");
    register_shared_device_backend(&make_shared);
    EXPECT_EQ(make(), "gloo");
    EXPECT_EQ(made_shared, 1);
    devices = 2; // of ranks 0 and 2
    EXPECT_EQ(make(), of_host);
    devices = 1;
    ::setenv("TESSERA_TRANSPORT", "shm", 1);
    EXPECT_EQ(make(), of_host);
    ::unsetenv("TESSERA_TRANSPORT");
    EXPECT_EQ(made_shared, 1);
    register_shared_device_backend(&fail_to_share);
    EXPECT_EQ(make(), of_host);
    EXPECT_EQ(made_shared, 2);
  });
}

} // namespace tessera::runtime::cuda_transport_test

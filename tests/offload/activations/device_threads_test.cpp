// SPDX-License-Identifier: Apache-2.0
// What the offload of a device's tensors does on several threads, and when it
// ends: on the CPU none of this happens.
#include "offload/stores/stores.h"
#include "support/null_device.h"
#include "support/ranks.h"
#include "tessera/offload/activations/activation_copies.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera::offload::device_threads_test {

namespace {

using namespace tests;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

} // namespace

// One thread updates the shard in place while another reads it to the device.
TEST(DeviceThreads, UseAHostShardAtTheSameTime) {
  run_ranks(1, [](World&) {
    NullDevice guard({kType, 0});
    const c10::impl::DeviceGuardImplRegistrar registered(kType, &guard);
    MemoryLedger ledger;
    HostMemory memory({}, ledger);
    HostStore store(memory);
    const auto shard =
        store.reserve("shard", MemoryPurpose::kParameters, 16, at::kFloat);
    constexpr int kTimes = 100000;
    std::thread reader([&] {
      for (int i = 0; i < kTimes; ++i) {
        shard->used_on_current_stream({kType, 0});
      }
    });
    for (int i = 0; i < kTimes; ++i) {
      EXPECT_EQ(shard->in_place().numel(), 16);
    }
    reader.join();
  });
}

TEST(DeviceThreads, TheFileThreadIsOnItsRanksDevice) {
  run_ranks(1, [](World&) {
    NullDevice guard({kType, 0});
    const c10::impl::DeviceGuardImplRegistrar registered(kType, &guard);
    const TemporaryFolder folder;
    MemoryLedger ledger;
    HostMemory memory({.device = {kType, 1}}, ledger);
    {
      NvmeStore store({.folder = folder.path()}, memory, ledger);
      const auto shard =
          store.reserve("shard", MemoryPurpose::kParameters, 16, at::kFloat);
      shard->write(at::ones({16})).wait();
    }
    EXPECT_EQ(guard.set_elsewhere(), std::set<int>{1});
  });
}

TEST(DeviceThreads, CopiesOfActivationsEndBeforeTheirMemory) {
  run_ranks(1, [](World&) {
    NullDevice guard({kType, 0});
    const c10::impl::DeviceGuardImplRegistrar registered(kType, &guard);
    { const ActivationCopies copies({kType, 0}, std::nullopt); }
    EXPECT_EQ(guard.synchronized, 2);
  });
}

} // namespace tessera::offload::device_threads_test

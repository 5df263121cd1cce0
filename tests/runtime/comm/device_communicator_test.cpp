// SPDX-License-Identifier: Apache-2.0
// How communicators of a device with streams are made and left, with a backend
// that does nothing else.
#include "support/fake_streams.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace tessera::runtime::device_communicator_test {

namespace {

using namespace tests;

/// What all backends were asked to do.
struct Calls {
  int made = 0;
  int broadcasts = 0;
  int shutdowns = 0;
  int aborts = 0;
};
Calls calls;

class FakeBackend : public c10d::Backend {
 public:
  FakeBackend() : Backend(0, 1) {
    setBoundDeviceId(kFakeDevice);
    ++calls.made;
  }
  const std::string getBackendName() const override {
    return "fake";
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& /*tensors*/,
      const c10d::BroadcastOptions& options) override {
    EXPECT_FALSE(options.asyncOp);
    ++calls.broadcasts;
    return {};
  }
  void shutdown() override {
    EXPECT_FALSE(FakeStreams::instance().is_busy);
    ++calls.shutdowns;
  }
  void abort() override {
    ++calls.aborts;
  }
};

class DeviceCommunicator : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeStreams::instance().reset();
    calls = {};
  }

  /// A communicator that has been used.
  static std::unique_ptr<Communicator> make() {
    auto made = std::make_unique<Communicator>(
        "test",
        c10::make_intrusive<FakeBackend>(),
        std::chrono::milliseconds(1000));
    made->broadcast(at::zeros({1}), 0, "a broadcast").wait();
    return made;
  }
};

} // namespace

TEST_F(DeviceCommunicator, IsLeftWhenItsStreamsAreIdle) {
  auto group = make();
  FakeStreams::instance().is_busy = true;
  std::thread device([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    FakeStreams::instance().is_busy = false;
  });
  group.reset();
  device.join();
  EXPECT_EQ(calls.broadcasts, 1);
  EXPECT_EQ(calls.shutdowns, 1);
  EXPECT_EQ(calls.aborts, 0);
}

TEST_F(DeviceCommunicator, IsNotLeftInOrderAfterAnError) {
  auto group = make();
  group->abort();
  group.reset();
  EXPECT_EQ(calls.aborts, 1);
  try {
    const auto other = make();
    throw std::runtime_error("a failed step");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(calls.broadcasts, 2);
  EXPECT_EQ(calls.shutdowns, 0);
}

TEST_F(DeviceCommunicator, AGroupOfOneHasABackendOnlyOnRequest) {
  run_ranks(1, [](World& world) {
    replace_cuda_backend(
        {.loaded = true, .device_count = 1, .device_type = kFakeDevice.type()});
    register_nccl_backend(
        {[](const c10::intrusive_ptr<c10d::Store>&,
            const NcclOptions& options) -> c10::intrusive_ptr<c10d::Backend> {
           EXPECT_EQ(options.size, 1);
           return c10::make_intrusive<FakeBackend>();
         },
         [](int) -> std::string { return "the device"; }});
    EXPECT_EQ(world.device(), kFakeDevice);
    world.new_communicator("plain", kFakeDevice);
    EXPECT_EQ(calls.made, 0);
    ::setenv("TESSERA_FORCE_NCCL", "1", 1);
    world.new_communicator("on the CPU");
    EXPECT_EQ(calls.made, 0);
    world.new_communicator("forced", kFakeDevice)
        ->broadcast(at::zeros({1}), 0, "a broadcast")
        .wait();
    EXPECT_EQ(calls.made, 1);
    EXPECT_EQ(calls.broadcasts, 1);
  });
}

} // namespace tessera::runtime::device_communicator_test

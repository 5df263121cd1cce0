// SPDX-License-Identifier: Apache-2.0
// Memory of the device that LibTorch's allocator does not hold, in the memory
// table and in the budget.
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"
#include "support/vdev/vdev_runtime.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/memory/library_memory.h"
#include "tessera/sharding/lazy/move_module.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

namespace tessera::tests::vdev::vdev_library_memory_test {

namespace {

constexpr int64_t kTaken = int64_t{5} << 20;
constexpr int64_t kMiB = 1 << 20;

Engine wrap_on(World& world, std::optional<int64_t> device_bytes) {
  torch::nn::Sequential net(
      torch::nn::Linear(32, 32), torch::nn::Linear(32, 32));
  move_module(*net, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.memory.device_bytes = device_bytes;
  return wrap(net.ptr(), options);
}

int64_t libraries_in(const MemoryBytes& bytes) {
  return bytes[static_cast<size_t>(MemoryPurpose::kLibraries)];
}

int64_t planned_libraries(World& world) {
  return libraries_in(wrap_on(world, {}).planned_memory());
}

/// fake_nvml.cpp, under the name by which it is asked for.
using FakeNvml = void (*)(unsigned pid, unsigned long long, unsigned long long);
FakeNvml load_fake_nvml() {
  void* library = ::dlopen(fake_nvml().c_str(), RTLD_NOW);
  EXPECT_NE(library, nullptr) << ::dlerror();
  return reinterpret_cast<FakeNvml>(::dlsym(library, "fake_nvml_set"));
}

} // namespace

TEST(LibraryMemory, IsMeasuredAndTakenOffTheBudget) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    DeviceMemory::instance().take_elsewhere(kTaken);
    int64_t planned = 0;
    {
      const Engine engine = wrap_on(world, {});
      planned = libraries_in(engine.planned_memory());
      // A mebibyte for what the device's allocator keeps.
      EXPECT_GE(planned, kTaken);
      EXPECT_LT(planned, kTaken + kMiB);
      EXPECT_EQ(libraries_in(engine.measured_memory()), planned);
    }
    // The model and its updates need far less than a MiB.
    wrap_on(world, planned + 2 * kMiB);
    expect_error(
        [&] { wrap_on(world, planned - 1); },
        {"memory budget", "too small", "memory.device_bytes"});
  });
}

// Other processes start and end between them.
TEST(LibraryMemory, IsTheSameForEnginesOfOneProcess) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    const int64_t before = planned_libraries(world);
    DeviceMemory::instance().take_elsewhere(kTaken);
    EXPECT_EQ(planned_libraries(world), before);
    wrap_on(world, before + 2 * kMiB);
  });
}

TEST(LibraryMemory, IsNotThatOfOtherProcesses) {
  const FakeNvml set = load_fake_nvml();
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [&](World& world) {
    DeviceMemory::instance().take_elsewhere(kTaken);
    constexpr int64_t kOwn = int64_t{64} << 20;
    set(static_cast<unsigned>(::getpid()), kOwn, kOwn + kTaken);
    const int64_t planned = planned_libraries(world);
    // Beside what LibTorch's allocator holds.
    EXPECT_LE(planned, kOwn);
    EXPECT_GT(planned, kOwn - 16 * kMiB);
  });
}

TEST(LibraryMemory, IsKnownOfRanksThatShareADevice) {
  const FakeNvml set = load_fake_nvml();
  run_ranks_on_vdev(kDevices + 1, {Policy::Order::kLazy}, [&](World& world) {
    set(static_cast<unsigned>(::getpid()), 64 * kMiB, 640 * kMiB);
    EXPECT_GT(engine::library_bytes(world, world.device()), 48 * kMiB);
    EXPECT_LE(engine::library_bytes(world, world.device()), 64 * kMiB);
  });
}

// As in a container, where NVML numbers processes otherwise: what others had
// when the rank began is not its own.
TEST(LibraryMemory, BeginsAtWhatOthersHadBefore) {
  const FakeNvml set = load_fake_nvml();
  constexpr unsigned kOtherPid = 4000000000;
  set(kOtherPid, kTaken, kTaken);
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    // The kTaken bytes of before, and a MiB of a library of this process.
    DeviceMemory::instance().take_elsewhere(kTaken + kMiB);
    const int64_t planned = planned_libraries(world);
    EXPECT_GE(planned, kMiB);
    EXPECT_LT(planned, 2 * kMiB);
  });
}

TEST(LibraryMemory, IsWhatTheEnvironmentSays) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    ::setenv("TESSERA_LIBRARY_BYTES", "7000000", 1);
    DeviceMemory::instance().take_elsewhere(kTaken);
    EXPECT_EQ(planned_libraries(world), 7000000);
    ::setenv("TESSERA_LIBRARY_BYTES", "7 MB", 1);
    expect_error(
        [&] { wrap_on(world, {}); }, {"TESSERA_LIBRARY_BYTES is '7 MB'"});
  });
}

} // namespace tessera::tests::vdev::vdev_library_memory_test

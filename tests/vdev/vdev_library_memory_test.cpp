// SPDX-License-Identifier: Apache-2.0
// Memory of the device that nothing here allocates, in the memory table and in
// the budget.
#include "support/expect_error.h"
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/move_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::tests::vdev::vdev_library_memory_test {

namespace {

constexpr int64_t kTaken = int64_t{5} << 20;

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

} // namespace

TEST(LibraryMemory, IsMeasuredAndTakenOffTheBudget) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    const int64_t before = libraries_in(wrap_on(world, {}).planned_memory());
    DeviceMemory::instance().take_elsewhere(kTaken);
    {
      // A mebibyte for what the device's allocator keeps of earlier engines.
      const Engine engine = wrap_on(world, {});
      const int64_t planned = libraries_in(engine.planned_memory());
      EXPECT_GE(planned, before + kTaken);
      EXPECT_LT(planned, before + kTaken + (1 << 20));
      EXPECT_EQ(libraries_in(engine.measured_memory()), planned);
    }
    // The model and its updates need far less than a MiB.
    wrap_on(world, before + kTaken + (2 << 20));
    expect_error(
        [&] { wrap_on(world, before + kTaken - 1); },
        {"memory budget", "too small", "memory.device_bytes"});
  });
}

} // namespace tessera::tests::vdev::vdev_library_memory_test

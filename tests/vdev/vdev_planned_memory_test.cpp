// SPDX-License-Identifier: Apache-2.0
// The memory that is planned for CUDA against what the virtual device's
// allocator counts.
#include "support/vdev/vdev.h"
#include "zoo/device_planned_memory.h"

namespace tessera::tests::vdev::vdev_planned_memory_test {

TEST(PlannedMemory, IsWhatTheAllocatorCounts) {
  run_ranks_on_vdev(1, {Policy::Order::kEager}, [](World& world) {
    for (const auto& planned : zoo::device_planned_memory::cases(/*scale=*/1)) {
      // What another stream still reads when it is freed is freed later.
      // Attention here is matrix products, of float32 copies in bfloat16.
      zoo::device_planned_memory::expect_planned(
          world, planned, 0.99, planned.dtype ? 1.12 : 1.05);
    }
  });
}

} // namespace tessera::tests::vdev::vdev_planned_memory_test

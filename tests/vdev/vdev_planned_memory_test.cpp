// SPDX-License-Identifier: Apache-2.0
// The memory that is planned for CUDA against what the virtual device's
// allocator counts.
#include "support/vdev/vdev.h"
#include "zoo/device_planned_memory.h"

namespace tessera::tests::vdev::vdev_planned_memory_test {

TEST(PlannedMemory, IsWhatTheAllocatorCounts) {
  run_ranks_on_vdev(
      1,
      {Policy::Order::kEager},
      zoo::device_planned_memory::expect_all_planned);
}

} // namespace tessera::tests::vdev::vdev_planned_memory_test

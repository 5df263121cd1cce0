// SPDX-License-Identifier: Apache-2.0
// The memory that is planned for CUDA against what its allocator counts.
#include "support/cuda_ranks_test.h"
#include "zoo/device_planned_memory.h"

namespace tessera::zoo::planned_memory_gpu_test {
namespace {

class PlannedMemoryOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(PlannedMemoryOnCuda, IsWhatTheAllocatorCounts) {
  tests::run_ranks(
      1,
      [](World& world) {
        for (const auto& planned : device_planned_memory::cases(/*scale=*/8)) {
          // LibTorch's allocator does not divide what is left of a block if it
          // has less than a mebibyte, and tensors have some each.
          device_planned_memory::expect_planned(world, planned, 0.97, 1.10);
        }
      },
      kLimits);
}

} // namespace tessera::zoo::planned_memory_gpu_test

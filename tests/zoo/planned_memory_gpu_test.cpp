// SPDX-License-Identifier: Apache-2.0
// The memory that is planned for CUDA against what its allocator counts.
#include "support/cuda_ranks_test.h"
#include "zoo/device_planned_memory.h"

namespace tessera::zoo::planned_memory_gpu_test {
namespace {

class PlannedMemoryOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(PlannedMemoryOnCuda, IsWhatTheAllocatorCounts) {
  tests::run_ranks(1, device_planned_memory::expect_all_planned, kLimits);
}

} // namespace tessera::zoo::planned_memory_gpu_test

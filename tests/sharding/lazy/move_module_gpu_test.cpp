// SPDX-License-Identifier: Apache-2.0
#include "sharding/lazy/move_module_cases.h"
#include "support/cuda_ranks_test.h"

namespace tessera::sharding::move_module_gpu_test {

namespace {

namespace cases = tests::move_module_cases;

class MoveModuleCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(MoveModuleCuda, ALazyModuleIsMaterializedThere) {
  tests::run_ranks(
      1, [](World&) { cases::expect_materialized_there(); }, kLimits);
}

TEST_F(MoveModuleCuda, AModuleWithMemoryIsCopied) {
  tests::run_ranks(1, cases::expect_copied, kLimits);
}

TEST_F(MoveModuleCuda, ALazyModuleIsDividedThere) {
  tests::run_ranks(
      2, [](World&) { cases::expect_divided_there(); }, kLimits);
}

} // namespace tessera::sharding::move_module_gpu_test

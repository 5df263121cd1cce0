// SPDX-License-Identifier: Apache-2.0
// Backward on a CUDA device that writes over spent gradients.
#include "engine/device_spent_gradients.h"
#include "support/cuda_ranks_test.h"

namespace tessera::engine::spent_gradients_gpu_test {

namespace {

namespace cases = tests::device_spent_gradients;

class SpentGradientsOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(SpentGradientsOnCuda, AreWrittenOverWithTheSameBits) {
  tests::run_ranks(1, cases::expect_written_over, kLimits);
}

TEST_F(SpentGradientsOnCuda, TrainAsWithoutWritingOverThem) {
  tests::run_ranks(1, cases::expect_bits_of_training_without, kLimits);
}

TEST_F(SpentGradientsOnCuda, TakeLessMemory) {
  tests::run_ranks(1, cases::expect_less_memory, kLimits);
}

} // namespace tessera::engine::spent_gradients_gpu_test

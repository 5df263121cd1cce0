// SPDX-License-Identifier: Apache-2.0
// Saved tensors of a CUDA device that rest on the host.
#include "engine/activation_offload_cases.h"
#include "support/cuda_ranks_test.h"

namespace tessera::engine::activation_offload_gpu_test {

namespace {

namespace cases = tests::activation_cases;

constexpr cases::Sizes kSizes{2048, 512}; // 4 MiB

class CudaActivations : public tests::CudaRanksTest {};

} // namespace

TEST_F(CudaActivations, EqualBitForBitOnOneStreamAndOnTwo) {
  tests::run_ranks(
      1,
      [](World& world) { cases::expect_equal_bits(world, kSizes); },
      kLimits);
}

TEST_F(CudaActivations, TheDevicesPeakFalls) {
  tests::run_ranks(
      1,
      [](World& world) { cases::expect_lower_peak(world, kSizes); },
      kLimits);
}

TEST_F(CudaActivations, AWrappedModelTrainsTheSame) {
  tests::run_ranks(
      1,
      [](World& world) {
        cases::expect_same_training(world, 256, 1024, 2 << 20);
      },
      kLimits);
}

} // namespace tessera::engine::activation_offload_gpu_test

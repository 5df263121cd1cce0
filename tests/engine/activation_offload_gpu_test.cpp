// SPDX-License-Identifier: Apache-2.0
// Saved tensors of a CUDA device that rest on the host.
#include "engine/activation_offload_cases.h"
#include "support/cuda_ranks_test.h"

namespace tessera::engine::activation_offload_gpu_test {

namespace {

namespace cases = tests::activation_cases;

/// 4 MiB on CUDA.
cases::Sizes sizes() {
  return {tests::gpu_size(2048, 64), tests::gpu_size(512, 32)};
}

class CudaActivations : public tests::CudaRanksTest {};

} // namespace

TEST_F(CudaActivations, EqualBitForBitOnOneStreamAndOnTwo) {
  tests::run_ranks(
      1,
      [](World& world) { cases::expect_equal_bits(world, sizes()); },
      kLimits);
}

TEST_F(CudaActivations, TheDevicesPeakFalls) {
  tests::run_ranks(
      1,
      [](World& world) { cases::expect_lower_peak(world, sizes()); },
      kLimits);
}

TEST_F(CudaActivations, AWrappedModelTrainsTheSame) {
  tests::run_ranks(
      1,
      [](World& world) {
        cases::expect_same_training(
            world,
            tests::gpu_size(256, 32),
            tests::gpu_size(1024, 64),
            tests::gpu_size(2 << 20, 64 << 10));
      },
      kLimits);
}

} // namespace tessera::engine::activation_offload_gpu_test

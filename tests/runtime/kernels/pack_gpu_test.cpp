// SPDX-License-Identifier: Apache-2.0
// Packing and sums of powers on CUDA, against LibTorch's operators.
#include "runtime/kernels/pack_reference.h"

#include "support/cuda_test.h"
#include "support/power_sums.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::runtime::pack_gpu_test {

namespace {

class PackGpu : public tests::CudaTest {};

} // namespace

TEST_F(PackGpu, ConvertsScalesAndPads) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25, 1.0 / 3}) {
        // The longest run takes the largest grid more than one turn.
        check_pack(
            {from,
             to,
             factor,
             tests::cuda_device(),
             tests::gpu_size(1'300'003, 30'001)});
      }
    }
  }
}

TEST_F(PackGpu, Adds) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25}) {
        check_pack(
            {from,
             to,
             factor,
             tests::cuda_device(),
             tests::gpu_size(1'300'003, 30'001),
             PackMode::kAdd});
      }
    }
  }
}

TEST_F(PackGpu, PowerSumsAreThoseOfTheCpu) {
  at::manual_seed(1);
  std::vector<at::Tensor> on_cpu;
  std::vector<at::Tensor> on_gpu;
  for (const int64_t numel :
       {int64_t{1},
        int64_t{0},
        int64_t{1000},
        tests::gpu_size(300'001, 3001)}) {
    on_cpu.push_back(at::randn({numel}));
    on_gpu.push_back(on_cpu.back().to(tests::cuda_device()));
  }
  for (const double p : {1.0, 2.0, 3.0, HUGE_VAL}) {
    const auto expected = power_sums(on_cpu, p);
    const auto sums = power_sums(on_gpu, p);
    for (size_t i = 0; i < sums.size(); ++i) {
      // Added up in float32, in a tree: some ten roundings of 6e-8, times p
      // when the norm is raised to it again.
      EXPECT_NEAR(sums[i], expected[i], 5e-6 * expected[i]) << "p = " << p;
    }
  }
  on_gpu[2][17] = NAN;
  EXPECT_TRUE(std::isnan(power_sums(on_gpu, 2)[2]));
  EXPECT_TRUE(std::isnan(power_sums(on_gpu, HUGE_VAL)[2]));
}

} // namespace tessera::runtime::pack_gpu_test

// SPDX-License-Identifier: Apache-2.0
// Losses of rows and their gradients in place on CUDA, against float64.
#include "runtime/kernels/softmax_loss_cases.h"
#include "support/cuda_test.h"

#include <gtest/gtest.h>

namespace tessera::runtime::softmax_loss_gpu_test {

namespace {

class SoftmaxLossGpu : public tests::CudaTest {};

} // namespace

TEST_F(SoftmaxLossGpu, IsAsInFloat64) {
  auto cases = softmax_loss_cases::all_cases();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    cases.push_back({dtype, tests::gpu_size(1025, 17), 50'257, 50'264});
    cases.push_back({dtype, 33, 50'257, 50'257, 0.1, 1e-4});
  }
  for (const auto& which : cases) {
    softmax_loss_cases::check_case(which, softmax_loss_, tests::cuda_device());
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    softmax_loss_cases::check_extremes(
        dtype, softmax_loss_, tests::cuda_device());
  }
}

// The check at the first use has not put operators in the kernel's place.
TEST_F(SoftmaxLossGpu, IsTheKernels) {
  for (const auto type :
       {LowPrecision::kNone, LowPrecision::kBFloat16, LowPrecision::kFloat16}) {
    const KernelTrial& trial = softmax_loss_trial(type);
    EXPECT_EQ(trial.difference(tests::cuda_device()).value_or(""), "")
        << trial.name();
  }
}

} // namespace tessera::runtime::softmax_loss_gpu_test

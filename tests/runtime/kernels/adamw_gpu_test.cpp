// SPDX-License-Identifier: Apache-2.0
// The CUDA kernel has the bits of the CPU kernels.
#include "runtime/kernels/adamw_reference.h"
#include "tessera/runtime/kernels/adamw.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace tessera::runtime::adamw_gpu_test {

namespace {

class AdamWGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    AdamWGpu,
    ::testing::Values(at::kFloat, at::kDouble),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

/// A copy on the device, `offset` elements into an allocation.
at::Tensor on_device(const at::Tensor& t, int64_t offset) {
  return at::empty({t.numel() + offset}, t.options().device(at::kCUDA))
      .narrow(0, offset, t.numel())
      .copy_(t);
}

void expect_same_on_both(
    int64_t numel,
    int64_t offset,
    at::ScalarType dtype,
    at::ScalarType format) {
  SCOPED_TRACE(
      "numel " + std::to_string(numel) + ", offset " + std::to_string(offset));
  torch::manual_seed(numel + offset);
  AdamWState cpu(numel, 0, dtype);
  AdamWState gpu =
      cpu.map([&](const at::Tensor& t) { return on_device(t, offset); });
  at::Tensor cpu_low = at::zeros({numel}, format);
  at::Tensor gpu_low = on_device(cpu_low, offset);
  AdamWStep step{.grad_scale = 0.7};
  for (step.step = 1; step.step <= 5; ++step.step) {
    cpu.grad.copy_(random_spread(numel, dtype));
    gpu.grad.copy_(cpu.grad);
    adamw_(cpu.master, cpu.grad, cpu.exp_avg, cpu.exp_avg_sq, step, cpu_low);
    adamw_(gpu.master, gpu.grad, gpu.exp_avg, gpu.exp_avg_sq, step, gpu_low);
    ASSERT_TRUE(same_bits(gpu.master.cpu(), cpu.master));
    ASSERT_TRUE(same_bits(gpu.exp_avg.cpu(), cpu.exp_avg));
    ASSERT_TRUE(same_bits(gpu.exp_avg_sq.cpu(), cpu.exp_avg_sq));
    ASSERT_TRUE(same_bits(gpu_low.cpu(), cpu_low));
  }
}

} // namespace

TEST_P(AdamWGpu, HasTheBitsOfTheCpu) {
  for (at::ScalarType format : {at::kBFloat16, at::kHalf}) {
    for (int64_t numel : {0, 1, 3, 4, 5, 255, 1024, 1027, 3000001}) {
      expect_same_on_both(numel, 0, GetParam(), format);
    }
    // Not aligned for packed loads.
    expect_same_on_both(1027, 1, GetParam(), format);
  }
}

} // namespace tessera::runtime::adamw_gpu_test

// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of all optimizers have the bits of the CPU kernels; LAMB's
// sums agree to float64's rounding.
#include "runtime/kernels/adamw_reference.h"
#include "runtime/kernels/update_reference.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace tessera::runtime::update_gpu_test {

namespace {

class UpdateGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    UpdateGpu,
    ::testing::Values(at::kFloat, at::kDouble),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

} // namespace

TEST_P(UpdateGpu, HasTheBitsOfTheCpu) {
  for (const int64_t numel : {1, 3, 5, 255, 1027, 300'001}) {
    for (const at::ScalarType format : {at::kBFloat16, at::kHalf}) {
      for_each_update([&](const auto& update, const char* name) {
        UpdateTensors cpu = random_tensors(numel, GetParam());
        cpu.grad = cpu.grad.to(format);
        if (format == at::kBFloat16) {
          cpu.moment = cpu.moment.to(format);
          cpu.moment_sq = cpu.moment_sq.to(format);
        }
        cpu.low_precision = at::zeros({numel}, format);
        UpdateTensors gpu = converted(cpu, at::Device(at::kCUDA));
        update(cpu);
        update(gpu);
        EXPECT_TRUE(same_bits(gpu.master.cpu(), cpu.master)) << name;
        EXPECT_TRUE(same_bits(gpu.moment.cpu(), cpu.moment)) << name;
        EXPECT_TRUE(torch::equal(gpu.low_precision.cpu(), cpu.low_precision))
            << name;
      });
    }
  }
}

TEST_P(UpdateGpu, RoundsStochasticallyAsTheCpuDoes) {
  for (const int64_t numel : {1, 3, 1027, 300'001}) {
    UpdateTensors cpu = random_tensors(numel, GetParam());
    cpu.moment = cpu.moment.to(at::kBFloat16);
    cpu.moment_sq = cpu.moment_sq.to(at::kBFloat16);
    cpu.low_precision = at::zeros({numel}, at::kBFloat16);
    const UpdateTensors gpu = converted(cpu, at::Device(at::kCUDA));
    for (const UpdateTensors& t : {cpu, gpu}) {
      const AdamWRun run{t, {.step = 3, .rounding = {true, 5, 1'000'003}}};
      adamw_runs_({&run, 1});
    }
    EXPECT_TRUE(same_bits(gpu.moment.cpu(), cpu.moment));
    EXPECT_TRUE(same_bits(gpu.moment_sq.cpu(), cpu.moment_sq));
    EXPECT_TRUE(same_bits(gpu.low_precision.cpu(), cpu.low_precision));
  }
}

TEST_P(UpdateGpu, ManyRunsOfAllAlignmentsAreAsOneByOne) {
  // More runs than one launch takes.
  const UpdateTensors all = random_tensors(20'000, GetParam());
  const UpdateTensors on_gpu = converted(all, at::Device(at::kCUDA));
  std::vector<SgdRun> cpu_runs;
  std::vector<SgdRun> gpu_runs;
  int64_t offset = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t numel = 1 + i % 13;
    const auto part = [&](const UpdateTensors& t) {
      return UpdateTensors{
          t.master.narrow(0, offset, numel),
          t.grad.narrow(0, offset, numel),
          t.moment.narrow(0, offset, numel),
          {},
          {}};
    };
    const SgdStep step{.lr = 0.01 * static_cast<double>(i), .momentum = 0.9};
    cpu_runs.push_back({part(all), step});
    gpu_runs.push_back({part(on_gpu), step});
    offset += numel + 1;
  }
  sgd_runs_(cpu_runs);
  sgd_runs_(gpu_runs);
  EXPECT_TRUE(same_bits(on_gpu.master.cpu(), all.master));
  EXPECT_TRUE(same_bits(on_gpu.moment.cpu(), all.moment));
}

TEST_P(UpdateGpu, LambsSumsAgree) {
  const UpdateTensors cpu = random_tensors(100'003, GetParam());
  const UpdateTensors gpu = converted(cpu, at::Device(at::kCUDA));
  double sums[2][2] = {};
  int i = 0;
  for (const UpdateTensors& t : {cpu, gpu}) {
    const LambRun run{t, {}};
    double* own = sums[i++];
    lamb_moments_({&run, 1}, {&own, 1});
  }
  // The CPU sums a few squares in float32.
  EXPECT_NEAR(sums[1][0], sums[0][0], 1e-6 * sums[0][0]);
  EXPECT_NEAR(sums[1][1], sums[0][1], 1e-6 * sums[0][1]);
}

} // namespace tessera::runtime::update_gpu_test

// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of all optimizers have the bits of the CPU kernels; LAMB's
// sums agree with float64.
#include "runtime/kernels/cuda_device.h"
#include "runtime/kernels/device_cases.h"
#include "support/cuda_test.h"

#include <gtest/gtest.h>

namespace tessera::runtime::update_gpu_test {

namespace {

class UpdateGpu : public tests::CudaTest,
                  public ::testing::WithParamInterface<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    UpdateGpu,
    ::testing::ValuesIn(device_cases::kMasterTypes),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

} // namespace

TEST_P(UpdateGpu, AdamWHasTheBitsOfTheCpu) {
  device_cases::check_adamw_steps(CudaDevice(), GetParam());
}

TEST_P(UpdateGpu, HasTheBitsOfTheCpu) {
  device_cases::check_all_updates(CudaDevice(), GetParam());
}

TEST_P(UpdateGpu, KeepsWhatIsNotFinite) {
  device_cases::check_extremes(CudaDevice(), GetParam());
}

TEST_P(UpdateGpu, RoundsStochasticallyAsTheCpuDoes) {
  device_cases::check_stochastic_rounding(CudaDevice(), GetParam());
}

TEST_P(UpdateGpu, ManyRunsOfAllAlignmentsAreAsOneByOne) {
  device_cases::check_many_runs(CudaDevice(), GetParam());
}

TEST_P(UpdateGpu, LambsSumsAgree) {
  device_cases::check_lamb_sums(CudaDevice(), GetParam());
}

} // namespace tessera::runtime::update_gpu_test

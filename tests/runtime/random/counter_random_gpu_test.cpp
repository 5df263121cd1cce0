// SPDX-License-Identifier: Apache-2.0
// A slice on CUDA gets the bits that it would get on the CPU.
#include "support/cuda_test.h"
#include "tessera/runtime/random/counter_random.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace tessera::runtime::counter_random_gpu_test {

namespace {

class CounterRandomCuda : public tests::CudaTest,
                          public ::testing::WithParamInterface<at::ScalarType> {
};

} // namespace

TEST_P(CounterRandomCuda, ASliceHasTheBitsOfTheHost) {
  const RandomStream random{42, stream_of("layer.weight")};
  // More than one of the parts that travel through the host, and less.
  for (const int64_t numel : {int64_t{5}, (int64_t{1} << 22) + 1001}) {
    const at::Tensor host = at::empty({numel}, GetParam());
    const at::Tensor device = at::empty(
        {numel}, at::TensorOptions(GetParam()).device(tests::cuda_device()));
    fill_uniform(host, random, 777, -0.5, 2);
    fill_uniform(device, random, 777, -0.5, 2);
    EXPECT_TRUE(device.cpu().equal(host)) << numel;
    fill_normal(host, random, 12'345, 1, 0.02);
    fill_normal(device, random, 12'345, 1, 0.02);
    EXPECT_TRUE(device.cpu().equal(host)) << numel;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    CounterRandomCuda,
    ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

} // namespace tessera::runtime::counter_random_gpu_test

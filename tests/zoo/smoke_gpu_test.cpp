// SPDX-License-Identifier: Apache-2.0
// A model of each family on a CUDA device: forward, backward and two steps,
// with the losses of the same steps of plain LibTorch on the CPU.

#include "support/cuda_ranks_test.h"
#include "zoo/family_fixtures.h"

#include <cmath>

namespace tessera::zoo::smoke_gpu_test {
namespace {

class ZooOnCuda : public tests::CudaRanksTest,
                  public ::testing::WithParamInterface<const char*> {};

} // namespace

TEST_P(ZooOnCuda, TrainsAsPlainLibTorchOnTheCpu) {
  const std::string name = GetParam();
  tests::run_ranks(
      1,
      [&](World& world) {
        const auto expected = train_plain_family(name, 1).losses;
        const auto found = train_wrapped_family(world, name).losses;
        // fp32 sums in another order, over two updates.
        const double tolerance = 1e-4 * std::abs(expected.front()) + 1e-5;
        for (int step = 0; step < kFamilySteps; ++step) {
          EXPECT_NEAR(found[step], expected[step], tolerance)
              << "step " << step;
        }
        EXPECT_GT(std::abs(expected.back() - expected.front()), 3 * tolerance)
            << "the updates change nothing that could be seen";
      },
      kLimits);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ZooOnCuda,
    ::testing::ValuesIn(kFamilyFixtures),
    [](const auto& one) { return std::string(one.param); });

} // namespace tessera::zoo::smoke_gpu_test

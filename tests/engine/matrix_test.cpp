// SPDX-License-Identifier: Apache-2.0
// Training in every combination of what the engine offers, against plain
// LibTorch: losses, gradients, weights and memory. Every pair of options meets
// in some case; with TESSERA_SOAK set it is the full product. With
// TESSERA_TEST_DEVICE=cuda the model is on World::device().
#include "engine/matrix/comparison.h"
#include "support/cuda_devices.h"
#include "support/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::tests::matrix_test {

namespace {

/// [Note: tolerances of the matrix] Every rank has batches of its own. The
/// reference adds up their gradients in the order of the ranks, and an update
/// is the same operations on the same numbers, in every type: on the CPU all
/// must be equal to the last bit.
/// CUDA promises no order of sums. In float32 a gradient is off by a few 1e-7
/// of itself; a weight in bfloat16 or float16 that then rounds to the other
/// neighbour changes all gradients by up to 2^-9 of themselves. eps = 1e-3
/// keeps AdamW from making more of that.
bool on_cuda() {
  const char* device = std::getenv("TESSERA_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

double tolerance_of(const Case& which) {
  return !on_cuda() ? 0 : which.dtype() == at::kFloat ? 1e-4 : 4e-3;
}

double fraction_of(const Case& which) {
  return !on_cuda() ? 0 : which.dtype() == at::kFloat ? 1e-3 : 2e-2;
}

std::vector<Case> chosen_cases() {
  return std::getenv("TESSERA_SOAK") != nullptr ? all_cases()
                                                : pairwise_cases();
}

} // namespace

class Matrix : public ::testing::TestWithParam<Case> {};

TEST_P(Matrix, TrainsAsPlainLibTorch) {
  if (on_cuda() && count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  RankOptions limits;
  if (on_cuda()) {
    limits.limit = std::chrono::seconds(240); // loading CUDA takes seconds
  }
  run_ranks(
      GetParam().world(),
      [](World& world) {
        matrix::ComparisonOptions options{
            {}, tolerance_of(GetParam()), fraction_of(GetParam())};
        if (on_cuda()) {
          options.move = [&](auto& net) { net.to(world.device()); };
        }
        matrix::Comparison(GetParam(), world, options).run();
      },
      limits);
}

INSTANTIATE_TEST_SUITE_P(Options, Matrix, ::testing::ValuesIn(chosen_cases()));

} // namespace tessera::tests::matrix_test

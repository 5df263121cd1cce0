// SPDX-License-Identifier: Apache-2.0
// Texts that models on a CUDA device go on with.
#include "support/cuda_ranks_test.h"
#include "zoo/device_generation.h"

namespace tessera::zoo::generation_gpu_test {
namespace {

class GenerationOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(GenerationOnCuda, WritesTheTextsOfTheCpu) {
  tests::run_ranks(1, device_generation::expect_texts_of_the_cpu, kLimits);
}

TEST_F(GenerationOnCuda, WritesTheTextsOfNoCache) {
  tests::run_ranks(1, device_generation::expect_texts_of_no_cache, kLimits);
}

TEST_F(GenerationOnCuda, HasTheLogitsOfNoCache) {
  tests::run_ranks(1, device_generation::expect_logits_of_no_cache, kLimits);
}

} // namespace tessera::zoo::generation_gpu_test

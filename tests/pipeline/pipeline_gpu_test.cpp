// SPDX-License-Identifier: Apache-2.0
#include "pipeline/device_pipeline.h"
#include "support/cuda_ranks_test.h"

namespace tessera::pipeline::pipeline_gpu_test {

namespace {

class PipelineCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(PipelineCuda, HasTheGradientsOfOneRank) {
  tests::run_ranks(
      2, tests::device_pipeline::expect_gradients_of_one_rank, kLimits);
}

} // namespace tessera::pipeline::pipeline_gpu_test

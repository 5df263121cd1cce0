// SPDX-License-Identifier: Apache-2.0
// Masks of packed documents and of pairs of answers on a CUDA device.
#include "support/cuda_ranks_test.h"
#include "zoo/device_masks.h"

namespace tessera::zoo::masks_gpu_test {
namespace {

class MasksOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(MasksOnCuda, KeepPackedDocumentsApart) {
  tests::run_ranks(1, device_masks::expect_documents_apart, kLimits);
}

TEST_F(MasksOnCuda, GivePackedDocumentsTheGradientsOfEachAlone) {
  tests::run_ranks(1, device_masks::expect_gradients_of_each_alone, kLimits);
}

TEST_F(MasksOnCuda, GivePairsTheLossesAndGradientsOfTheCpu) {
  tests::run_ranks(1, device_masks::expect_preferences_of_the_cpu, kLimits);
}

} // namespace tessera::zoo::masks_gpu_test

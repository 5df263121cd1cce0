// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation with clipping, and the ranks' parts of a batch against
// the whole of it.
#include "engine/parity_subjects.h"
#include "support/ranks.h"

namespace tessera::engine::parity_batch_test {

namespace {

using namespace tests;

std::vector<ParityCase> cases() {
  return {
      parity_case("Text", kText),
      parity_case("Gpt", kGpt),
      parity_case("Cells", kCells),
      parity_case("UNet", kUNet),
      parity_case("SharedBlock", kSharedSubject),
      parity_case("OddSizes", kOddSizes),
      parity_case("MixedPrecision", kMixed),
      parity_case("Frozen", kFrozen),
  };
}

} // namespace

class ParityBatchTest
    : public ::testing::TestWithParam<std::tuple<ParityCase, int>> {};

TEST_P(ParityBatchTest, ThreeMicroBatchesClipped) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, [run = subject.run](World& world) {
    auto options = parity_options(world, 0);
    options.micro_batches = 3;
    options.max_norm = 0.1;
    options.steps = 4;
    // The norm is summed in another order, in float64.
    options.tolerance = 1e-9;
    run(world, options);
  });
}

TEST_P(ParityBatchTest, ThreeMicroBatchesOnOneOrTwoRanksEqualToTheBit) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, [run = subject.run](World& world) {
    auto options = parity_options(world, 100'000);
    options.micro_batches = 3;
    options.steps = 3;
    run(world, options);
  });
}

TEST_P(ParityBatchTest, PartOfTheBatchOnEachRank) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, [run = subject.run](World& world) {
    auto options = parity_options(world, 100'000);
    options.plain_sees_full_batch = true;
    options.steps = 5;
    // Sums over parts of the batch round otherwise than the sum over all.
    options.tolerance = 1e-5;
    options.eps = 1e-3;
    run(world, options);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ParityBatchTest,
    ::testing::Combine(
        ::testing::ValuesIn(cases()),
        ::testing::Values(1, 2, 3)),
    name_of_case);

} // namespace tessera::engine::parity_batch_test

// SPDX-License-Identifier: Apache-2.0
// Ten AdamW steps of sequence models, plain and wrapped, on one to four ranks.
#include "engine/parity_subjects.h"
#include "support/ranks.h"

namespace tessera::engine::parity_sequence_test {

namespace {

using namespace tests;

std::vector<ParityCase> cases() {
  return {
      parity_case("Text", kText),
      parity_case("Gpt", kGpt),
      parity_case("Frozen", kFrozen),
      parity_case("Cells", kCells),
      parity_case("BiLstm", kBiLstm),
      parity_case("Transformer", kTransformer),
      parity_case("Bert", kBert),
  };
}

} // namespace

class ParitySequenceTest
    : public ::testing::TestWithParam<std::tuple<ParityCase, int>> {};

TEST_P(ParitySequenceTest, TenStepsEqualThePlainRun) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, [&, ranks = ranks, run = subject.run](World& world) {
    // A group for each block; then, where time allows, small groups merged.
    run(world, parity_options(world, 0));
    if (ranks < 4) {
      run(world, parity_options(world, 100'000));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ParitySequenceTest,
    ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Range(1, 5)),
    name_of_case);

} // namespace tessera::engine::parity_sequence_test

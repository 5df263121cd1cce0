// SPDX-License-Identifier: Apache-2.0
// Ten AdamW steps of image models and of unusual modules, plain and wrapped, on
// one to four ranks.
#include "engine/parity_subjects.h"
#include "support/ranks.h"

namespace tessera::engine::parity_test {

namespace {

using namespace tests;

std::vector<ParityCase> cases() {
  return {
      parity_case("ResNet", kResNet),
      parity_case("UNet", kUNet),
      parity_case("Vae", kVae),
      parity_case("SharedBlock", kSharedSubject),
      parity_case("OddSizes", kOddSizes),
      parity_case("MixedPrecision", kMixed),
      parity_case("Double", kDoubleSubject),
  };
}

} // namespace

class ParityTest
    : public ::testing::TestWithParam<std::tuple<ParityCase, int>> {};

TEST_P(ParityTest, TenStepsEqualThePlainRun) {
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
    ParityTest,
    ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Range(1, 5)),
    name_of_case);

} // namespace tessera::engine::parity_test

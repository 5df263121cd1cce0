// SPDX-License-Identifier: Apache-2.0
// Parameters that some steps, or some ranks, do not use: AdamW leaves a
// parameter without a gradient alone, its weight decay and moments included.
#include "engine/parity.h"
#include "engine/stranger_models.h"
#include "support/ranks.h"

namespace tessera::engine::unused_parameters_test {

namespace {

using namespace tests;

torch::Tensor loss_with(
    strangers::Experts& model,
    const torch::Tensor& x,
    bool use_left,
    bool use_right) {
  return model->forward(x, use_left, use_right).square().mean();
}

/// Which experts take part is drawn anew for every batch.
const Subject<strangers::Experts> kByStep{
    [] { return strangers::Experts(); },
    [](strangers::Experts& model, int64_t part, int64_t parts) {
      const auto drawn = torch::randint(2, {2});
      return loss_with(
          model,
          torch::randn({12, 6}).chunk(parts)[part],
          drawn[0].item<int64_t>() == 0,
          drawn[1].item<int64_t>() == 0);
    }};

/// Rank 0 uses the left expert, rank 1 the right one or none: what a rank did
/// not use counts as zero in the average.
const Subject<strangers::Experts> kByRank{
    [] { return strangers::Experts(); },
    [](strangers::Experts& model, int64_t part, int64_t parts) {
      const auto x = torch::randn({4, 6}).chunk(2);
      const bool right = torch::randint(2, {}).item<int64_t>() == 0;
      EXPECT_EQ(parts, 2);
      return loss_with(model, x[part], part == 0, part == 1 && right);
    }};

} // namespace

class UnusedParametersByWorld : public ::testing::TestWithParam<int> {};

TEST_P(UnusedParametersByWorld, AreLeftAlone) {
  run_ranks(GetParam(), [](World& world) {
    for (const int64_t min_group_numel : {0, 100'000}) {
      auto options = parity_options(world, min_group_numel);
      expect_parity(world, kByStep, options, "by step");
      options.micro_batches = 2;
      expect_parity(world, kByStep, options, "by micro-batch");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    UnusedParametersByWorld,
    ::testing::Range(1, 5));

TEST(UnusedParametersTest, MayDependOnTheRankWithinAGroup) {
  run_ranks(2, [](World& world) {
    auto options = parity_options(world, 100'000);
    expect_parity(world, kByRank, options, "by rank");
    options.micro_batches = 2;
    expect_parity(world, kByRank, options, "by rank and micro-batch");
  });
}

// As of another module's outputs: also if an earlier backward of the step has
// reached the parameters, and only once.
TEST(UnusedParametersTest, ALossThatReachesNoneIsWarnedOf) {
  const auto warnings_with = [](bool of_another) {
    const auto results = run_ranks_expecting(2, [&](World&) {
      torch::nn::Linear net(3, 2);
      torch::nn::Linear other(3, 2);
      auto engine = wrap(net);
      for (int step = 0; step < 2; ++step) {
        engine.backward(net->forward(torch::ones({1, 3})).sum());
        auto& next = of_another ? other : net;
        engine.backward(next->forward(torch::ones({1, 3})).sum());
        engine.step();
      }
      for (const at::Tensor& parameter : net->parameters()) {
        parameter.requires_grad_(false); // nothing is trained: as it is meant
      }
      engine.backward(other->forward(torch::ones({1, 3})).sum());
    });
    int count = 0;
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
      for (size_t at = 0; (at = result.output.find("gave no parameter", at)) !=
                          std::string::npos;
           ++at) {
        ++count;
      }
    }
    return count;
  };
  EXPECT_EQ(warnings_with(false), 0);
  EXPECT_EQ(warnings_with(true), 2); // one on each rank
}

} // namespace tessera::engine::unused_parameters_test

// SPDX-License-Identifier: Apache-2.0
// A checkpoint is read under other numbers of ranks and other groups: the same
// values, and the same next step.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"

#include <torch/serialize.h>

namespace tessera::engine::reshard_test {

namespace {

using namespace tests;

/// Four ranks hold two copies of two parts.
EngineOptions options_of(
    const World& world,
    const UpdateRule& rule,
    int64_t min_group_numel) {
  auto options = group_per_layer();
  options.optimizer.rule = rule;
  options.optimizer.parameters = {
      {.pattern = "first.*", .rule = AdamWOptions{}},
      {.pattern = ".*bias", .rule = SgdOptions{.momentum = 0.9}}};
  options.sharding.groups.min_group_numel = min_group_numel;
  options.sharding.shard_ranks = world.size() == 4 ? 2 : 0;
  return options;
}

/// A step that is the same on all ranks.
void common_step(Engine& engine, Restless& net) {
  net->eval(); // no dropout
  torch::manual_seed(9);
  const auto x = torch::randn({5, 7}, torch::kDouble);
  engine.backward(net->forward(x).square().mean());
  engine.step();
}

/// What world `saving` has before and after a common step, written by rank 0.
void save_from(
    int saving,
    const UpdateRule& rule,
    const TemporaryFolder& folder) {
  run_ranks(saving, [&](World& world) {
    auto net = make_restless(1, torch::kDouble);
    auto engine = wrap(net, options_of(world, rule, 0));
    torch::manual_seed(5); // all alike: buffers too
    train_steps(engine, net, 3);
    engine.save(folder / "checkpoints");
    const auto before = values_of(engine, *net);
    common_step(engine, net);
    const auto after = values_of(engine, *net);
    if (world.rank() == 0) {
      for (const auto& [name, value] : before) {
        torch::save(value, (folder / ("before." + name)).string());
        torch::save(after.at(name), (folder / ("after." + name)).string());
      }
    }
  });
}

void expect_values(
    const TemporaryFolder& folder,
    const std::string& when,
    const std::map<std::string, at::Tensor>& got,
    double tolerance) {
  for (const auto& [name, value] : got) {
    at::Tensor expected;
    torch::load(expected, (folder / (when + "." + name)).string());
    EXPECT_TRUE(torch::allclose(value, expected, tolerance, tolerance))
        << when << ": " << name << " is off by "
        << (value - expected).abs().max().item<double>();
  }
}

} // namespace

class Reshard : public ::testing::TestWithParam<int> {
 protected:
  static void expect_read_by_any_world(const UpdateRule& rule) {
    const TemporaryFolder folder;
    save_from(GetParam(), rule, folder);
    for (const int loading : {1, 2, 3, 4}) {
      for (const int64_t min_group_numel : {0, 100'000}) {
        run_ranks(loading, [&](World& world) {
          auto net = make_restless(2, torch::kDouble);
          auto engine = wrap(net, options_of(world, rule, min_group_numel));
          engine.load(folder / "checkpoints");
          expect_values(folder, "before", values_of(engine, *net), 0);
          common_step(engine, net);
          // Sums of equal gradients over other numbers of ranks round
          // otherwise.
          expect_values(folder, "after", values_of(engine, *net), 1e-10);
        });
      }
    }
  }
};

TEST_P(Reshard, AnyWorldReadsWhatAnotherWrote) {
  expect_read_by_any_world(AdafactorOptions{});
}

TEST_P(Reshard, AnyWorldReadsThePreviousGradientsOfAdan) {
  expect_read_by_any_world(AdanOptions{});
}

// Statistics of each rank's own batches.
TEST(ReshardBuffers, AreEachRanksOwnOnAsManyRanksAndElseTheFirstOnes) {
  const TemporaryFolder folder;
  const auto on_ranks = [&](int ranks, const auto& body) {
    run_ranks(ranks, [&](World& world) {
      torch::nn::BatchNorm1d net(3);
      EngineOptions options;
      options.log_memory = false;
      auto engine = wrap(net, options);
      body(world, engine, *net);
    });
  };
  on_ranks(3, [&](World& world, Engine& engine, auto& net) {
    net.running_mean.fill_(7 + world.rank());
    engine.save(folder.path());
  });
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](World& world, Engine& engine, auto& net) {
      engine.load(folder.path());
      EXPECT_TRUE(net.running_mean.eq(7 + (ranks == 3 ? world.rank() : 0))
                      .all()
                      .template item<bool>())
          << net.running_mean;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Reshard, ::testing::Range(1, 5));

} // namespace tessera::engine::reshard_test

// SPDX-License-Identifier: Apache-2.0
// The same training run, bit for bit, wherever shards of parameters and
// gradients rest: on the device, on the host, in files, also where one rank
// holds all of them and they come and go for its operators.
#include "engine/offload/placement.h"

#include "support/ranks.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"

#include <algorithm>

namespace tessera::engine::shard_tiers_test {

namespace {

using namespace tests;

constexpr MemoryTier kTiers[] = {
    MemoryTier::kDevice,
    MemoryTier::kHost,
    MemoryTier::kNvme};

struct Tiers {
  MemoryTier parameters;
  MemoryTier gradients;
  MemoryTier state;
};

EngineOptions on(
    EngineOptions options,
    const Tiers& tiers,
    const TemporaryFolder& folder) {
  options.memory.nvme_path = folder.path();
  options.placement.parameters = tiers.parameters;
  options.placement.gradients = tiers.gradients;
  options.placement.optimizer = tiers.state;
  return options;
}

std::string text_of(const Tiers& tiers) {
  return std::string("parameters ") + name_of(tiers.parameters) +
         ", gradients " + name_of(tiers.gradients) + ", state " +
         name_of(tiers.state);
}

/// Every pair, with the state on a tier that changes from one to the next.
std::vector<Tiers> every_pair() {
  std::vector<Tiers> all;
  for (const MemoryTier parameters : kTiers) {
    for (const MemoryTier gradients : kTiers) {
      all.push_back({parameters, gradients, kTiers[(all.size() + 1) % 3]});
    }
  }
  return all;
}

int64_t bytes_of(const Engine& engine, MemoryTier tier, MemoryPurpose purpose) {
  return engine.measured_memory(tier)[static_cast<size_t>(purpose)];
}

/// Trains with `tiers`, and looks where things are.
Outcome train_on(
    World& world,
    const EngineOptions& options,
    const Tiers& tiers,
    const TemporaryFolder& folder,
    const std::string& label) {
  return train(
      world, on(options, tiers, folder), label, [&](const Engine& engine) {
        for (const MemoryTier tier : kTiers) {
          EXPECT_EQ(
              bytes_of(engine, tier, MemoryPurpose::kParameters) > 0,
              tier == tiers.parameters)
              << label << ": " << name_of(tier);
          EXPECT_EQ(
              bytes_of(engine, tier, MemoryPurpose::kGradients) > 0,
              tier == tiers.gradients)
              << label << ": " << name_of(tier);
        }
      });
}

} // namespace

class ShardTiersOf : public ::testing::TestWithParam<int> {};

TEST_P(ShardTiersOf, ParametersAndGradientsChangeNoBit) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const auto precision :
         {std::optional<at::ScalarType>(),
          std::optional(at::kBFloat16),
          std::optional(at::kHalf)}) {
      EngineOptions options = resting_options(precision);
      const Outcome expected = train(world, options, "device");
      for (const int depth : {0, 2}) {
        options.sharding.prefetch_depth = depth;
        for (const Tiers& tiers : every_pair()) {
          const std::string label = tests::text_of(precision) + ", " +
                                    text_of(tiers) + ", prefetching " +
                                    std::to_string(depth);
          expect_same_run(
              train_on(world, options, tiers, folder, label), expected, label);
        }
      }
    }
    EXPECT_EQ(folder.count(), 0u);
  });
}

TEST_P(ShardTiersOf, GradientsOfEveryStageAndAccumulation) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const int stage : {1, 2, 3}) {
      for (const auto accumulation :
           {GradientAccumulation::kReduceEachBackward,
            GradientAccumulation::kKeepWhole}) {
        EngineOptions options = resting_options(at::kBFloat16);
        options.sharding.zero_stage = stage;
        options.sharding.accumulation = accumulation;
        const Outcome expected = train(world, options, "device");
        for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
          const std::string label =
              "stage " + std::to_string(stage) + ", " + name_of(tier);
          expect_same_run(
              train_on(world, options, {tier, tier, tier}, folder, label),
              expected,
              label);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShardTiersOf, ::testing::Range(1, 4));

TEST(ShardTiers, OfCopiesOfDividedAndOfWholeModels) {
  run_ranks(4, [](World& world) {
    const TemporaryFolder folder;
    for (const int shard_ranks : {1, 2}) {
      EngineOptions options = resting_options(at::kBFloat16);
      options.sharding.shard_ranks = shard_ranks;
      const Outcome expected = train(world, options, "device");
      for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
        const std::string label =
            "shard ranks " + std::to_string(shard_ranks) + ", " + name_of(tier);
        expect_same_run(
            train_on(
                world, options, {tier, tier, MemoryTier::kHost}, folder, label),
            expected,
            label);
      }
    }
  });
}

TEST(ShardTiers, WithUpdatesInBackward) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World& world) {
      const TemporaryFolder folder;
      std::map<std::string, at::Tensor> expected;
      for (const MemoryTier tier : kTiers) {
        EngineOptions options =
            on(resting_options(at::kBFloat16), {tier, tier, tier}, folder);
        options.update_in_backward = true;
        RestingNet net = make_resting_net();
        auto engine = wrap(net, options);
        for (int step = 0; step < 5; ++step) {
          torch::manual_seed(10 * step + world.rank());
          engine.backward(
              net->forward(torch::randn({5, 7}), true).square().mean());
          engine.step();
        }
        const auto values = parameters_of(engine);
        if (tier == MemoryTier::kDevice) {
          expected = values;
        }
        expect_same_bits(values, expected, name_of(tier));
      }
    });
  }
}

TEST(ShardTiers, AreReadAndWrittenInScopes) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World& world) {
      const TemporaryFolder folder;
      for (const MemoryTier tier : kTiers) {
        for (const auto precision :
             {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
          RestingNet net = make_resting_net();
          const at::Tensor before = net->first->weight.detach().clone();
          auto engine = wrap(
              net, on(resting_options(precision), {tier, tier, tier}, folder));
          train_resting(engine, net, 0, 1, world.rank());
          {
            const auto scope = engine.gather(*net->first, {.writable = true});
            const torch::NoGradGuard no_grad;
            net->first->weight.fill_(0.5);
            net->first->weight.select(0, 1).fill_(2);
          }
          {
            const torch::NoGradGuard no_grad;
            const auto scope = engine.gather();
            EXPECT_TRUE(
                net->first->weight.select(0, 1).eq(2).all().item<bool>());
            EXPECT_TRUE(
                net->first->weight.select(0, 0).eq(0.5).all().item<bool>());
          }
          train_resting(engine, net, 1, 1, world.rank());
          const at::Tensor got = parameters_of(engine).at("first.weight");
          EXPECT_LT((got.select(0, 1) - 2).abs().max().item<double>(), 0.1);
          engine.unwrap();
          EXPECT_TRUE(torch::equal(net->first->weight, got));
        }
      }
    });
  }
}

TEST(ShardTiers, LeaveTheDeviceAsTheBudgetHasRoom) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World& world) {
      const TemporaryFolder folder;
      EngineOptions options = resting_options(at::kBFloat16);
      options.sharding.prefetch_depth = 1;
      const auto large = [] { return make_resting_net(400, 24); };
      const Outcome expected = train(world, options, "device", {}, large());

      RestingNet net = large();
      const DeviceMesh mesh =
          sharding::shard_mesh(world.rank(), world.size(), 0);
      const auto pages =
          sharding::plan_pages(*net, engine::pager_options(options), mesh);
      const auto needs = [&](const runtime::ShardTiers& tiers) {
        return device_needs(
            pages,
            engine::pager_options(options),
            std::vector<runtime::ShardTiers>(pages.size(), tiers));
      };
      const int64_t all = needs({});
      const int64_t without_gradients = needs({.gradients = MemoryTier::kHost});
      const int64_t least = needs({MemoryTier::kHost, MemoryTier::kHost});
      ASSERT_LT(least, without_gradients);
      for (const int64_t budget :
           {(all + without_gradients) / 2,
            (without_gradients + least) / 2,
            least}) {
        EngineOptions tight = options;
        tight.memory.device_bytes = budget;
        tight.memory.host_bytes = int64_t{16} << 20;
        tight.memory.nvme_path = folder.path();
        const std::string label = "device_bytes " + std::to_string(budget);
        const Outcome got = train(
            world,
            tight,
            label,
            [&](const Engine& engine) {
              EXPECT_LE(total_bytes(engine.measured_memory()), budget) << label;
              EXPECT_LE(
                  total_bytes(engine.measured_memory(MemoryTier::kHost)),
                  *tight.memory.host_bytes);
              const bool moves_parameters = budget < without_gradients;
              EXPECT_EQ(
                  bytes_of(
                      engine, MemoryTier::kHost, MemoryPurpose::kParameters) +
                          bytes_of(
                              engine,
                              MemoryTier::kNvme,
                              MemoryPurpose::kParameters) >
                      0,
                  moves_parameters)
                  << label;
            },
            large());
        expect_same_run(got, expected, label);
      }
    });
  }
}

} // namespace tessera::engine::shard_tiers_test

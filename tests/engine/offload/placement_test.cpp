// SPDX-License-Identifier: Apache-2.0
// The same training run, bit for bit, wherever optimizer state rests: on the
// device, on the host, in files, on all of them; with clipping, accumulation,
// bfloat16, and float16 with loss scaling. Memory is what was planned.
#include "engine/offload/placement.h"
#include "engine/optim/every_rule.h"

#include "support/ranks.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/offload/stores/block_pipeline.h"
#include "tessera/offload/updates/staging_buffers.h"

#include <algorithm>

namespace tessera::engine::placement_test {

namespace {

using namespace tests;
using namespace offload;

const std::vector<std::optional<at::ScalarType>> kPrecisions = {
    std::nullopt,
    at::kBFloat16,
    at::kHalf};

/// So large that its state does not fit in the memory that files pass through.
RestingNet make_large_net() {
  return make_resting_net(400, 24);
}

/// Room for the state of two groups on the device and on the host.
MemoryBudget budget_for_two_groups_each(
    const World& world,
    const EngineOptions& options) {
  RestingNet net = make_large_net();
  const DeviceMesh mesh = sharding::shard_mesh(world.rank(), world.size(), 0);
  const auto pages =
      sharding::plan_pages(*net, engine::pager_options(options), mesh);
  std::vector<int64_t> states;
  int64_t staged = 0;
  for (const sharding::PageSpec& page : pages) {
    const offload::PageNeeds needs = page_needs(page, options.optimizer);
    if (needs.state > 0) {
      states.push_back(needs.state);
      staged = std::max(staged, needs.staged_state);
    }
  }
  EXPECT_GE(states.size(), 6u);
  MemoryBudget memory;
  memory.device_bytes = device_needs(pages, engine::pager_options(options)) +
                        states[0] + states[1];
  memory.host_bytes = offload::BlockPipeline::staging_bytes() +
                      StagingBuffers::kBuffers * staged + states[2] + states[3];
  return memory;
}

} // namespace

class Placement : public ::testing::TestWithParam<int> {};

TEST_P(Placement, OfAdamWStateChangesNoBit) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const auto precision : kPrecisions) {
      EngineOptions options = resting_options(precision);
      const Outcome expected = train(world, options, "device");
      for (const MemoryTier placement :
           {MemoryTier::kHost, MemoryTier::kNvme}) {
        const bool in_files = placement == MemoryTier::kNvme;
        options.placement.optimizer = placement;
        options.memory.nvme_path = in_files ? folder.path() : "";
        const std::string label =
            text_of(precision) + (in_files ? " in files" : " on the host");
        const Outcome got =
            train(world, options, label, [&](const Engine& engine) {
              EXPECT_EQ(state_bytes(engine, MemoryTier::kDevice), 0) << label;
              EXPECT_EQ(state_bytes(engine, MemoryTier::kNvme) > 0, in_files);
              EXPECT_EQ(state_bytes(engine, MemoryTier::kHost) > 0, !in_files);
            });
        expect_same_run(got, expected, label);
      }
      EXPECT_EQ(folder.count(), 0u); // files have no names
    }
  });
}

TEST_P(Placement, IsChosenByTheBudget) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const auto precision : kPrecisions) {
      EngineOptions options = resting_options(precision);
      const Outcome expected =
          train(world, options, "device", {}, make_large_net());
      options.memory = budget_for_two_groups_each(world, options);
      options.memory.nvme_path = folder.path();
      const std::string label = text_of(precision) + " mixed";
      const Outcome got = train(
          world,
          options,
          label,
          [&](const Engine& engine) {
            for (const MemoryTier tier :
                 {MemoryTier::kDevice, MemoryTier::kHost, MemoryTier::kNvme}) {
              EXPECT_GT(state_bytes(engine, tier), 0)
                  << label << ": " << name_of(tier);
            }
            EXPECT_LE(
                total_bytes(engine.measured_memory()),
                *options.memory.device_bytes);
            EXPECT_LE(
                total_bytes(engine.measured_memory(MemoryTier::kHost)),
                *options.memory.host_bytes);
          },
          make_large_net());
      expect_same_run(got, expected, label);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Placement, ::testing::Range(1, 4));

TEST(PlacementOfOtherOptimizers, ChangesNoBit) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    for (const UpdateRule& rule : every_rule()) {
      for (const auto precision :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
        EngineOptions options = resting_options(precision, rule);
        const std::string label =
            std::string(name_of(rule)) + ", " + text_of(precision);
        const Outcome expected = train(world, options, label);
        options.placement.optimizer = MemoryTier::kHost;
        expect_same_run(
            train(world, options, label + ", host"),
            expected,
            label + ", host");
        options.placement.optimizer = MemoryTier::kNvme;
        options.memory.nvme_path = folder.path();
        expect_same_run(
            train(world, options, label + ", nvme"),
            expected,
            label + ", nvme");
      }
    }
  });
}

TEST(PlacementOfOtherOptimizers, OfAUserOnTheHostOnly) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    UserOptimizerOptions rule;
    rule.make = [](std::vector<torch::optim::OptimizerParamGroup> groups) {
      return std::make_unique<torch::optim::Adam>(
          std::move(groups), torch::optim::AdamOptions(1e-2));
    };
    EngineOptions options = resting_options(at::kBFloat16, rule);
    options.optimizer.parameters.clear();
    const Outcome expected = train(world, options, "user's");
    options.placement.optimizer = MemoryTier::kHost;
    expect_same_run(
        train(world, options, "user's on host"), expected, "user's on host");
    options.placement.optimizer = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    RestingNet net = make_resting_net();
    expect_throws(
        [&] { wrap(net, options); },
        {"placement.optimizer is nvme", "user-defined optimizer", "host"});
  });
}

TEST(PlacementOfParts, ThatAreUpdatedInBackward) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    std::map<std::string, at::Tensor> expected;
    for (const MemoryTier placement :
         {MemoryTier::kDevice, MemoryTier::kHost, MemoryTier::kNvme}) {
      EngineOptions options = resting_options(at::kBFloat16);
      options.update_in_backward = true;
      options.placement.optimizer = placement;
      options.memory.nvme_path = folder.path();
      RestingNet net = make_resting_net();
      auto engine = wrap(net, options);
      for (int step = 0; step < 5; ++step) {
        torch::manual_seed(10 * step + world.rank());
        engine.backward(
            net->forward(torch::randn({5, 7}), true).square().mean());
        engine.step();
      }
      const auto values = parameters_of(engine);
      if (placement == MemoryTier::kDevice) {
        expected = values;
      }
      expect_same_bits(
          values, expected, std::to_string(static_cast<int>(placement)));
    }
  });
}

TEST(PlacementOfParts, OfOneGroupBelongsToTwoOptimizers) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(at::kBFloat16);
    options.optimizer.parameters = {
        {.pattern = ".*bias", .rule = SgdOptions{.momentum = 0.5}}};
    const Outcome expected = train(world, options, "two");
    options.placement.optimizer = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    expect_same_run(train(world, options, "two, nvme"), expected, "two, nvme");
  });
}

} // namespace tessera::engine::placement_test

// SPDX-License-Identifier: Apache-2.0
// What reads and writes parameters, gradients and optimizer state outside of a
// step finds them wherever they rest: checkpoints, loaded weights, gather
// scopes, inspection.
#include "engine/offload/placement.h"

#include "support/ranks.h"
#include "tessera/engine/inspect_engine.h"
#include "tessera/runtime/io/safetensors.h"

namespace tessera::engine::placement_state_test {

namespace {

using namespace tests;

EngineOptions options_for(
    MemoryTier placement,
    const TemporaryFolder& folder,
    const UpdateRule& rule = AdamWOptions{}) {
  EngineOptions options = resting_options(at::kBFloat16, rule);
  options.placement.optimizer = placement;
  options.memory.nvme_path = folder.path();
  if (placement != MemoryTier::kDevice) {
    options.placement.parameters = placement;
    options.placement.gradients = placement;
  }
  return options;
}

constexpr MemoryTier kPlacements[] = {
    MemoryTier::kDevice,
    MemoryTier::kHost,
    MemoryTier::kNvme};

} // namespace

class PlacementState : public ::testing::TestWithParam<int> {};

TEST_P(PlacementState, GoesThroughCheckpointsOfEveryOtherPlacement) {
  const TemporaryFolder checkpoints;
  run_ranks(GetParam(), [&](World& world) {
    const TemporaryFolder folder;
    for (const UpdateRule& rule :
         {UpdateRule(AdamWOptions{}),
          UpdateRule(AdanOptions{}),
          UpdateRule(AdafactorOptions{})}) {
      for (const MemoryTier from : kPlacements) {
        RestingNet net = make_resting_net();
        auto engine = wrap(net, options_for(from, folder, rule));
        train_resting(engine, net, 0, 3, world.rank());
        const auto path = engine.save(
            checkpoints / (std::string(name_of(rule)) +
                           std::to_string(static_cast<int>(from))));
        const auto expected = train_resting(engine, net, 3, 3, world.rank());
        const auto values = parameters_of(engine);
        for (const MemoryTier to : kPlacements) {
          RestingNet other = make_resting_net();
          auto resumed = wrap(other, options_for(to, folder, rule));
          train_resting(resumed, other, 7, 2, world.rank());
          resumed.load(path);
          const std::string label = std::string(name_of(rule)) + ", from " +
                                    std::to_string(static_cast<int>(from)) +
                                    " to " +
                                    std::to_string(static_cast<int>(to));
          expect_same_bits(
              train_resting(resumed, other, 3, 3, world.rank()),
              expected,
              label);
          expect_same_bits(parameters_of(resumed), values, label);
          expect_planned(resumed, label);
        }
      }
    }
  });
}

TEST_P(PlacementState, TakesWeightsFromFilesAndScopes) {
  run_ranks(GetParam(), [&](World& world) {
    const TemporaryFolder folder;
    // Every rank writes the same file of its own.
    const at::Tensor weight = torch::full({3, RestingNetImpl::kWide}, 0.3F);
    const auto file = folder / "model.safetensors";
    {
      runtime::SafetensorsWriter writer(
          file,
          {{"last.weight",
            runtime::SafetensorsDtype::kF32,
            weight.sizes().vec()}});
      writer.write(
          "last.weight",
          {static_cast<const std::byte*>(weight.const_data_ptr()),
           static_cast<size_t>(weight.nbytes())});
      writer.commit();
    }
    std::map<std::string, at::Tensor> expected;
    std::vector<at::Tensor> expected_losses;
    std::vector<TensorSummary> expected_summary;
    for (const MemoryTier placement : kPlacements) {
      RestingNet net = make_resting_net();
      auto engine = wrap(net, options_for(placement, folder));
      train_resting(engine, net, 0, 2, world.rank());
      engine.load_weights(file, {.strict = false});
      {
        const auto scope = engine.gather(*net->first, {.writable = true});
        const c10::NoGradGuard no_grad;
        net->first->weight.narrow(0, 0, 2).fill_(0.25);
      }
      const auto summary = inspect_model(engine, ".*");
      const auto losses = train_resting(engine, net, 2, 3, world.rank());
      const auto values = parameters_of(engine);
      if (placement == MemoryTier::kDevice) {
        expected = values;
        expected_losses = losses;
        expected_summary = summary;
        continue;
      }
      const std::string label = std::to_string(static_cast<int>(placement));
      expect_same_bits(values, expected, label);
      expect_same_bits(losses, expected_losses, label);
      EXPECT_EQ(format_summary(summary), format_summary(expected_summary));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, PlacementState, ::testing::Range(1, 4));

} // namespace tessera::engine::placement_state_test

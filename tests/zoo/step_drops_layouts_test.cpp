// SPDX-License-Identifier: Apache-2.0
// Layers and tokens that training steps leave out, over layouts of ranks.
#include "support/ranks.h"
#include "tessera/sharding/paging/pager_statistics.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/layout_comparison.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::zoo::step_drops_layouts_test {

// Dropout included: plain LibTorch sees all batches.
TEST(StepDrops, AreThoseOfOneRankInLayouts) {
  const std::vector<Layout> layouts{
      {.name = "shard2", .parallel = {{.shard = 2}}, .recomputed = 2},
      {.name = "tensor2", .parallel = {{.shard = 1, .tensor = 2}}},
      {.name = "tensor2_sequence",
       .parallel = {{.shard = 1, .tensor = 2}, true},
       .recomputed = 5},
      {.name = "pipeline4", .parallel = {{.shard = 1, .pipeline = 4}}}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const TemporaryFolder folder;
    std::vector<Subject> subjects;
    for (Subject subject : kSubjects) {
      const std::string name = subject.name;
      if (name == "gpt" || name == "llama" || name == "bert") {
        subject.drops = true;
        subjects.push_back(subject);
        layout_comparison::save_subject(
            subject, layout, folder.path() / subject.name);
      }
    }
    tests::run_ranks(ranks_of(layout.parallel.sizes), [&](World& world) {
      for (const Subject& subject : subjects) {
        layout_comparison::expect_that_of_one_rank(
            world, folder.path() / subject.name, subject, layout);
      }
    });
  }
}

// A layer that is left out of a step is still unsharded and resharded as
// planned: after the first step, which runs all layers, nothing is on demand.
TEST(LayerDrop, FollowsTheResidencyPlan) {
  tests::run_ranks(2, [](World& world) {
    torch::manual_seed(2);
    const auto model = from_config(
        nlohmann::json::parse(R"({"model_type": "gpt2", "vocab_size": 31,
            "n_embd": 16, "n_layer": 8, "n_head": 4, "n_positions": 16})"),
        {.architecture = "GPT2Model"});
    model->train();
    model->drop_layers({.theta = 0.4, .gamma = 1});
    EngineOptions options;
    options.log_memory = false;
    options.sharding.zero_stage = 3;
    options.sharding.groups.min_group_numel = 0;
    Engine engine(world, model, options);
    ModelInput input;
    input.input_ids = torch::randint(31, {3, 10}, at::kLong);
    int64_t of_first_step = 0;
    for (int64_t step = 0; step < 24; ++step) {
      const RandomKeyScope random({.seed = 3, .step = step}, at::kCPU);
      engine.backward(model->forward(input).last_hidden_state.square().mean());
      engine.step();
      const int64_t on_demand = engine.stats().paging.on_demand_unshards;
      if (step == 0) {
        of_first_step = on_demand;
        EXPECT_GT(of_first_step, 0);
      }
      EXPECT_EQ(on_demand, of_first_step) << step;
    }
  });
}

} // namespace tessera::zoo::step_drops_layouts_test

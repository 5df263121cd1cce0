// SPDX-License-Identifier: Apache-2.0
// Layers and tokens that training steps leave out, over layouts of ranks.
#include "support/ranks.h"
#include "tessera/sharding/paging/pager_statistics.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/layout_comparison.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
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
// planned. From the first step on, which runs all layers, nothing is on demand;
// in a run that is resumed where layers are left out already, nothing after the
// plan has met all of them.
TEST(LayerDrop, FollowsTheResidencyPlan) {
  tests::run_ranks(2, [](World& world) {
    for (const int64_t begin : {0, 1000}) {
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
      std::vector<int64_t> on_demand; // of each step
      int64_t before = 0;
      for (int64_t step = begin; step < begin + 24; ++step) {
        const RandomKeyScope random({.seed = 3, .step = step}, at::kCPU);
        engine.backward(
            model->forward(input).last_hidden_state.square().mean());
        engine.step();
        const int64_t now = engine.statistics().on_demand_unshards;
        on_demand.push_back(now - before);
        before = now;
      }
      if (world.rank() == 0) {
        std::fprintf(stderr, "begin %d:", static_cast<int>(begin));
        for (const int64_t count : on_demand) {
          std::fprintf(stderr, " %d", static_cast<int>(count));
        }
        std::fprintf(stderr, "\n");
      }
      EXPECT_GT(on_demand.front(), 0);
      const size_t settled = begin == 0 ? 1 : 12;
      for (size_t i = settled; i < on_demand.size(); ++i) {
        EXPECT_EQ(on_demand[i], 0) << i;
      }
    }
  });
}

} // namespace tessera::zoo::step_drops_layouts_test

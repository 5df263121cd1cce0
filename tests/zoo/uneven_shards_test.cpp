// SPDX-License-Identifier: Apache-2.0
// Models whose heads, inner features and vocabulary do not divide evenly over
// tensor-parallel ranks: what was trained is saved, loaded and exported, under
// any limits of group sizes, and is what one rank trains.
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/models/pretrained.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::zoo::uneven_shards_test {

namespace {

constexpr int kRanks[] = {2, 3, 4};

/// Limits of which some separate the layers of one rank from another's: a
/// layer has 5,100 elements, of which ranks have 1,000 to 2,600.
struct Limits {
  int64_t min = 0;
  int64_t max = 0;
};
constexpr Limits kLimits[] =
    {{0, 0}, {1150, 0}, {1600, 0}, {2400, 0}, {6000, 0}, {1, 2500}, {1, 9000}};

nlohmann::json config() {
  return {
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", 101},
      {"n_positions", 16},
      {"n_embd", 24},
      {"n_head", 6},
      {"n_inner", 50},
      {"n_layer", 4},
      {"resid_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"attn_pdrop", 0.0}};
}

std::shared_ptr<Model> new_model(ParallelRun& parallel) {
  torch::manual_seed(3); // of what no rank divides
  auto model =
      from_config(config(), {.context = fresh_layer_context(parallel)});
  init_parameters(*model, 5);
  convert_deferred(*model, at::kDouble);
  model->to(at::kDouble);
  return model;
}

EngineOptions engine_options(const ParallelRun& parallel, Limits limits) {
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = limits.min;
  options.sharding.groups.max_group_numel = limits.max;
  options.optimizer.lr = 1e-2;
  options.parallel = &parallel.mesh();
  return options;
}

void train(Engine& engine, Model& model) {
  torch::manual_seed(1);
  for (int step = 0; step < 2; ++step) {
    ModelInput input;
    input.input_ids = torch::randint(101, {2, 12}, torch::kLong);
    input.labels = input.input_ids;
    engine.backward(model.forward(input).loss);
    engine.clip_grad_norm(0.5);
    engine.step();
  }
}

/// Trains, saves a checkpoint, loads it into another model, and exports both.
void run_job(World& world, Limits limits, const TemporaryFolder& folder) {
  ParallelRun parallel(
      world, {.sizes = {.shard = 1, .tensor = world.size()}}, 1);
  const auto model = new_model(parallel);
  Engine engine(world, model, engine_options(parallel, limits));
  train(engine, *model);
  const auto checkpoint = engine.save(folder / "checkpoints");
  save_pretrained(engine, *model, folder / "trained");

  const auto other = new_model(parallel);
  Engine loaded(world, other, engine_options(parallel, limits));
  EXPECT_EQ(loaded.load(checkpoint), 2);
  save_pretrained(loaded, *other, folder / "loaded");
}

/// Float64 sums in another order, through AdamW's division by small second
/// moments; weights moved by 1e-2.
void expect_same_models(
    const std::filesystem::path& got,
    const std::filesystem::path& want) {
  const auto a = from_pretrained(got, {.dtype = std::nullopt});
  const auto b = from_pretrained(want, {.dtype = std::nullopt});
  const auto values = a->named_parameters();
  for (const auto& item : b->named_parameters()) {
    EXPECT_TRUE(values[item.key()].allclose(item.value(), 1e-7, 1e-8))
        << item.key();
  }
}

} // namespace

TEST(UnevenShards, AreSavedAndExportedUnderAnyLimits) {
  const TemporaryFolder alone;
  tests::run_ranks(1, [&](World& world) { run_job(world, {}, alone); });
  for (const int ranks : kRanks) {
    for (const Limits limits : kLimits) {
      SCOPED_TRACE(
          std::to_string(ranks) + " ranks, min " + std::to_string(limits.min) +
          ", max " + std::to_string(limits.max));
      const TemporaryFolder folder;
      tests::run_ranks(
          ranks, [&](World& world) { run_job(world, limits, folder); });
      if (HasFailure()) {
        return;
      }
      expect_same_models(folder / "trained", alone / "trained");
      expect_same_models(folder / "loaded", alone / "trained");
    }
  }
}

} // namespace tessera::zoo::uneven_shards_test

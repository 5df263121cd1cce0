// SPDX-License-Identifier: Apache-2.0
// Adapters in pipeline stages and with divided sequences, trained and written
// by engines.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "zoo/divided_models.h"
#include "zoo/lora_fixture.h"

namespace tessera::zoo::lora_stages_test {
namespace {

using tests::run_ranks;

/// The gradients of what is trained here; engines have them.
void expect_own_gradients(
    const LoraFixture& reference,
    const Model& model,
    Engine& engine) {
  const auto parameters = model.named_parameters();
  const WeightNames names = lora_names(model);
  for (const NamedWeight& weight : names.weights()) {
    SCOPED_TRACE("gradient of " + weight.name);
    std::vector<torch::Tensor> gradients;
    for (const std::string& native : weight.native) {
      const torch::Tensor& parameter = parameters[native];
      gradients.push_back(engine.grad(parameter));
    }
    expect_near(
        weight.assemble(gradients), reference.expected("grad." + weight.name));
  }
}

/// In pipeline stages and with divided sequences, the state on the host.
void check_run(
    World& world,
    const char* name,
    const ParallelSizes& sizes,
    const TemporaryFolder& saved) {
  SCOPED_TRACE(name);
  constexpr int kBatches = 2;
  ParallelRun parallel(world, {.sizes = sizes}, kBatches);
  const LoraFixture reference(name);
  const auto model = from_pretrained(
      reference.base().folder(),
      {.context = layer_context(parallel), .lazy = true});
  load_lora(*model, reference.folder());
  EngineOptions options;
  options.log_memory = false;
  options.parallel = &parallel.mesh();
  options.placement.optimizer = MemoryTier::kHost;
  Engine engine(world, model, options);
  const ModelInput input = reference.input();
  if (PipelineExecutor* pipeline = parallel.pipeline()) {
    for (const auto& output : evaluate_pipeline(*pipeline, *model, {input})) {
      expect_outputs(reference, output);
    }
    // The same batch each time: the mean has the gradients of one.
    engine.run_pipeline(
        *pipeline, {pipeline_forward(*model, [&](int) -> const ModelInput& {
          return input;
        })});
  } else {
    const ModelOutput output = model->forward(input);
    expect_outputs(reference, output);
    engine.backward(output.loss);
  }
  expect_own_gradients(reference, *model, engine);
  engine.step(); // something else, and the folder's again
  load_lora(engine, *model, reference.folder());
  const auto folder = saved / name;
  save_lora(engine, *model, folder / "adapter");
  save_merged(engine, *model, folder / "merged");
  check_saved(world, reference, folder);
}

/// One step of SGD on adapters of one layer alone.
void train_layer(
    World& world,
    const ParallelSizes& sizes,
    int layer,
    const std::filesystem::path& saved) {
  ParallelRun parallel(world, {.sizes = sizes}, 2);
  const LoraFixture reference("llama");
  const auto model = from_pretrained(
      reference.base().folder(), {.context = layer_context(parallel)});
  LoraConfig config;
  config.init = LoraInit::kRandom;
  config.target_modules.pattern =
      "model\\.layers\\." + std::to_string(layer) + "\\..*proj";
  apply_lora(*model, config, 5);
  EngineOptions options;
  options.log_memory = false;
  options.parallel = &parallel.mesh();
  options.optimizer.rule = SgdOptions{};
  options.optimizer.lr = 0.1;
  Engine engine(world, model, options);
  const ModelInput input = reference.input();
  if (PipelineExecutor* pipeline = parallel.pipeline()) {
    engine.run_pipeline(
        *pipeline, {pipeline_forward(*model, [&](int) -> const ModelInput& {
          return input;
        })});
  } else {
    engine.backward(model->forward(input).loss);
  }
  engine.clip_grad_norm(0.5); // of all stages' gradients
  engine.step();
  save_lora(engine, *model, saved);
}

} // namespace

TEST(LoraStages, EqualPeft) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_run(world, name, {.shard = 1, .pipeline = 2}, saved);
    }
  });
}

TEST(LoraStages, EqualPeftWithDividedLayers) {
  const TemporaryFolder saved;
  run_ranks(4, [&](World& world) {
    for (const char* name : kAdapters) {
      check_run(world, name, {.shard = 1, .tensor = 2, .pipeline = 2}, saved);
    }
  });
}

// Of those with heads that two ranks divide.
TEST(LoraStages, EqualPeftOverContextRanks) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : {"glm4", "llama", "t5"}) {
      check_run(world, name, {.shard = 1, .context = 2}, saved);
    }
  });
}

// A stage without any has nothing to train, but hands gradients on.
TEST(LoraStages, TrainAdaptersOfOneStage) {
  const TemporaryFolder saved;
  World alone(0, 1, 0, nullptr, {});
  for (const int layer : {0, 1}) {
    const std::string number = std::to_string(layer);
    train_layer(alone, {.shard = 1}, layer, saved / ("one" + number));
    run_ranks(2, [&](World& world) {
      train_layer(
          world, {.shard = 1, .pipeline = 2}, layer, saved / ("two" + number));
    });
    const auto weights = [&](const char* ranks) {
      return runtime::SafetensorsFile::open(
          saved / (ranks + number) / "adapter_model.safetensors");
    };
    const auto one = weights("one");
    const auto two = weights("two");
    EXPECT_EQ(one.entries().size(), 2U * 7); // A and B
    ASSERT_EQ(two.entries().size(), one.entries().size());
    for (const runtime::SafetensorsEntry& entry : one.entries()) {
      SCOPED_TRACE(entry.name);
      expect_near(
          fixture_tensor(two, entry.name), fixture_tensor(one, entry.name));
    }
  }
}

TEST(LoraStages, SayThatTheyNeedAnEngine) {
  const auto stage = from_pretrained(
      fixture("models") / "llama",
      {.context = LayerContext().on_stage({2, 1, 0, {}})});
  LoraConfig config;
  config.target_modules.names = {"q_proj"};
  apply_lora(*stage, config);
  const TemporaryFolder saved;
  expect_error([&] { save_lora(*stage, saved / "a"); }, {"stage", "engine"});
  expect_error([&] { save_merged(*stage, saved / "m"); }, {"stage", "engine"});
}

} // namespace tessera::zoo::lora_stages_test

// SPDX-License-Identifier: Apache-2.0
// Adapters over two ranks: of divided layers, under ZeRO, and in pipelines.

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "zoo/divided_models.h"
#include "zoo/lora_fixture.h"

namespace tessera::zoo {
namespace {

using testing::run_ranks;

constexpr const char* kAdapters[] =
    {"bert", "bert_biases", "glm4", "gpt2", "llama", "t5"};

void check_saved(
    World& world,
    const LoraFixture& reference,
    const std::filesystem::path& folder) {
  if (world.rank() != 0) {
    return;
  }
  expect_same_adapter(reference, folder / "adapter");
  const auto merged = from_pretrained(folder / "merged");
  expect_outputs(reference, merged->forward(reference.input()));
}

/// @param saved a folder that all ranks know.
void check_tensor_parallel(
    World& world,
    const char* name,
    bool sequence,
    const TemporaryFolder& saved) {
  SCOPED_TRACE(name);
  ParallelGroups groups(
      world,
      ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
      torch::Device(torch::kCPU));
  const TensorParallel how{&groups[ParallelGroup::kTensor], sequence};
  const LoraFixture reference(name);
  const auto model = from_pretrained(
      reference.base().folder(), {.context = LayerContext(how)});
  load_lora(*model, reference.folder());
  const ModelOutput output = model->forward(reference.input());
  expect_outputs(reference, output);
  output.loss.backward();
  expect_gradients(reference, *model, WholeGradients(*model, *how.group));
  const auto folder = saved / name;
  save_lora(*model, folder / "adapter");
  save_merged(*model, folder / "merged");
  check_saved(world, reference, folder);
  merge_lora(*model);
  expect_outputs(reference, model->forward(reference.input()));
}

/// Elements of those that are trained.
int64_t trained_numel(const Model& model) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : model.parameters()) {
    count += parameter.requires_grad() ? parameter.numel() : 0;
  }
  return count;
}

void check_engine(
    World& world,
    const char* name,
    int zero_stage,
    const TemporaryFolder& saved) {
  SCOPED_TRACE(name);
  const LoraFixture reference(name);
  const auto model = from_pretrained(reference.base().folder(), {.lazy = true});
  load_lora(*model, reference.folder());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.zero_stage = zero_stage;
  options.sharding.groups.min_group_numel = 1000;
  const int64_t trained = trained_numel(*model);
  Engine engine(world, model, options);
  // Two moments of float32, divided over two ranks, with some padding.
  const torch::Tensor state = torch::full(
      {1},
      static_cast<double>(engine.measured_memory()[static_cast<size_t>(
          MemoryPurpose::kOptimizerState)]),
      torch::kDouble);
  engine.sum_over_ranks(state);
  EXPECT_GE(state.item<double>(), static_cast<double>(trained * 8));
  EXPECT_LE(state.item<double>(), static_cast<double>(trained * 8 + 4096));
  ModelOutput output = model->forward(reference.input());
  expect_outputs(reference, output);
  engine.backward(output.loss);
  expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
    return engine.grad(parameter);
  });
  output = {};
  engine.step(); // something else, and the folder's again
  load_lora(engine, *model, reference.folder());
  const auto folder = saved / (name + std::to_string(zero_stage));
  save_lora(world, engine, *model, folder / "adapter");
  save_merged(world, engine, *model, folder / "merged");
  check_saved(world, reference, folder);
}

/// The gradients of what is trained here; engines have them.
void expect_own_gradients(
    const LoraFixture& reference,
    const Model& model,
    Engine& engine,
    const std::unordered_map<const c10::TensorImpl*, ParameterPart>& parts,
    Communicator& tensor) {
  const auto parameters = model.named_parameters();
  const WeightNames names = lora_names(model);
  for (const NamedWeight& weight : names.weights()) {
    SCOPED_TRACE("gradient of " + weight.name);
    std::vector<torch::Tensor> gradients;
    for (const std::string& ours : weight.ours) {
      const torch::Tensor& parameter = parameters[ours];
      const torch::Tensor own = engine.grad(parameter);
      const auto part = parts.find(parameter.unsafeGetTensorImpl());
      gradients.push_back(
          part == parts.end()
              ? own
              : gather_parts(
                    own, part->second.dim, part->second.split, tensor));
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
  const auto parts = parts_in(*model);
  EngineOptions options;
  options.log_memory = false;
  options.parallel = &parallel.mesh();
  options.optimizer.placement = StatePlacement::kHost;
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
  expect_own_gradients(
      reference,
      *model,
      engine,
      parts,
      parallel.groups()[ParallelGroup::kTensor]);
  engine.step(); // something else, and the folder's again
  load_lora(engine, *model, reference.folder());
  const auto folder = saved / name;
  save_lora(world, engine, *model, folder / "adapter");
  save_merged(world, engine, *model, folder / "merged");
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
  engine.step();
  save_lora(world, engine, *model, saved);
}

} // namespace

TEST(LoraParallel, EqualsPeftWithLayersDivided) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_tensor_parallel(world, name, false, saved);
    }
  });
}

TEST(LoraParallel, EqualsPeftWithSequencesDivided) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_tensor_parallel(world, name, true, saved);
    }
  });
}

TEST(LoraParallel, EqualsPeftUnderZero) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const char* name : kAdapters) {
        check_engine(world, name, zero_stage, saved);
      }
    }
  });
}

TEST(LoraParallel, EqualsPeftInTwoStages) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_run(world, name, {.shard = 1, .pipeline = 2}, saved);
    }
  });
}

TEST(LoraParallel, EqualsPeftInTwoStagesOfDividedLayers) {
  const TemporaryFolder saved;
  run_ranks(4, [&](World& world) {
    for (const char* name : kAdapters) {
      check_run(world, name, {.shard = 1, .tensor = 2, .pipeline = 2}, saved);
    }
  });
}

// Of those with heads that two ranks divide.
TEST(LoraParallel, EqualsPeftOverContextRanks) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : {"glm4", "llama", "t5"}) {
      check_run(world, name, {.shard = 1, .context = 2}, saved);
    }
  });
}

// A stage without any has nothing to train, but hands gradients on.
TEST(LoraParallel, TrainsAdaptersOfOneStage) {
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
      return SafetensorsFile::open(
          saved / (ranks + number) / "adapter_model.safetensors");
    };
    const auto one = weights("one");
    const auto two = weights("two");
    EXPECT_EQ(one.entries().size(), 2U * 7); // A and B
    ASSERT_EQ(two.entries().size(), one.entries().size());
    for (const SafetensorsEntry& entry : one.entries()) {
      SCOPED_TRACE(entry.name);
      expect_near(
          fixture_tensor(two, entry.name), fixture_tensor(one, entry.name));
    }
  }
}

// Fresh adapters do not depend on the layout.
TEST(LoraParallel, StartsWithTheSameNumbersOnAnyNumberOfRanks) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const TensorParallel how{&groups[ParallelGroup::kTensor]};
    LoraConfig config;
    config.r = 3;
    config.init = LoraInit::kRandom;
    config.target_modules.pattern = "all-linear";
    const auto folder = fixture("models") / "gpt2";
    const auto plain = from_pretrained(folder);
    apply_lora(*plain, config, 7);
    const auto divided =
        from_pretrained(folder, {.context = LayerContext(how)});
    apply_lora(*divided, config, 7);
    const auto expected = plain->named_parameters();
    const auto parts = parts_in(*divided);
    const torch::NoGradGuard no_grad;
    for (const auto& item : divided->named_parameters()) {
      torch::Tensor whole = item.value();
      if (const auto part = parts.find(whole.unsafeGetTensorImpl());
          part != parts.end()) {
        whole = gather_parts(
            whole, part->second.dim, part->second.split, *how.group);
      }
      EXPECT_TRUE(whole.equal(expected[item.key()])) << item.key();
    }
  });
}

} // namespace tessera::zoo

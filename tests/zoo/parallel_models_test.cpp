// SPDX-License-Identifier: Apache-2.0
// The same models over two ranks, from the same folders: layers divided
// (tensor parallelism, with and without parts of sequences), and parameters
// divided by the engine (ZeRO-3). What they compute is held against
// transformers, as the plain models are.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "zoo/divided_models.h"

namespace tessera::zoo {
namespace {

using testing::run_ranks;

constexpr const char* kModels[] = {
    "bert",
    "bert_choice",
    "bert_next",
    "bert_questions",
    "bert_untied",
    "chatglm",
    "cpm1",
    "cpm2",
    "glm4",
    "glm_2021",
    "gpt2",
    "gpt2_questions",
    "gpt2_tokens",
    "gptj",
    "llama3",
    "llama_classifier",
    "longformer",
    "longformer_choice",
    "longformer_classifier",
    "longformer_questions",
    "mae",
    "moco",
    "opt_350m",
    "qwen2",
    "qwen3",
    "roberta_classifier",
    "t5",
    "t5_classifier",
    "t5_questions",
    "t5_tokens",
    "t5_v1_1",
    "vit_classifier"};

/// A folder that all ranks know; the first one removes it.
std::filesystem::path shared_folder(World& world, const std::string& name) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("tessera-parallel-models-" + name);
  if (world.rank() == 0) {
    std::filesystem::remove_all(path);
  }
  return path;
}

void check_tensor_parallel(World& world, const char* name, bool sequence) {
  SCOPED_TRACE(name);
  ParallelGroups groups(
      world,
      ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
      torch::Device(torch::kCPU));
  const TensorParallel how{&groups[ParallelGroup::kTensor], sequence};
  const ModelFixture reference(name);
  const auto model =
      from_pretrained(reference.folder(), {.context = LayerContext(how)});
  const ModelInput input = reference.input();
  const ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  output.loss.backward();
  expect_gradients(reference, *model, WholeGradients(*model, *how.group));

  if (model->names().prefix == "transformer." &&
      input.labels.dim() == 2) { // Without the logits of the whole vocabulary.
    ModelInput loss_only = input;
    loss_only.loss_only = true;
    expect_near(model->forward(loss_only).loss, output.loss);
  }
  const auto folder =
      shared_folder(world, std::string(name) + (sequence ? "-s" : "-t"));
  save_pretrained(*model, folder);
  if (world.rank() == 0) {
    expect_same_bytes(reference.folder(), folder);
    std::filesystem::remove_all(folder);
  }
}

void check_engine(World& world, const char* name) {
  SCOPED_TRACE(name);
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder(), {.lazy = true});
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 1000;
  Engine engine(world, model, options);
  const ModelInput input = reference.input();
  ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  engine.backward(output.loss);
  // Both ranks had the same batch: the average is each one's.
  expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
    return engine.grad(parameter);
  });
  output = {};
  // Something else, and the folder's again.
  engine.step();
  load_pretrained(engine, *model, reference.folder());
  const auto folder = shared_folder(world, std::string(name) + "-z");
  save_pretrained(world, engine, *model, folder);
  if (world.rank() == 0) {
    expect_same_bytes(reference.folder(), folder);
    std::filesystem::remove_all(folder);
  }
}

} // namespace

TEST(ParallelModels, EqualTransformersWithLayersDivided) {
  run_ranks(2, [](World& world) {
    for (const char* name : kModels) {
      check_tensor_parallel(world, name, false);
    }
    for (const char* name : {"qwen2_moe", "swin_classifier", "vit_masked"}) {
      check_tensor_parallel(world, name, false);
    }
  });
}

TEST(ParallelModels, EqualTransformersWithSequencesDivided) {
  run_ranks(2, [](World& world) {
    for (const char* name : kModels) {
      check_tensor_parallel(world, name, true);
    }
  });
}

TEST(ParallelModels, EqualTransformersWithParametersDivided) {
  run_ranks(2, [](World& world) {
    for (const char* name : kModels) {
      check_engine(world, name);
    }
    check_engine(world, "swin_classifier");
  });
}

TEST(ParallelModels, SayWhichSequencesAreNotDivided) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const LayerContext context(
        TensorParallel{&groups[ParallelGroup::kTensor], true});
    for (const auto& [name, reason] :
         {std::pair("swin_classifier", "whole maps"),
          std::pair("vit_masked", "17 tokens")}) {
      const ModelFixture reference(name);
      expect_error(
          [&] { from_pretrained(reference.folder(), {.context = context}); },
          {reason, "leave"});
    }
  });
}

TEST(ParallelModels, SayOnEveryRankThatTheDiskFailed) {
  run_ranks(2, [](World& world) {
    const ModelFixture reference("gpt2");
    const auto model = from_pretrained(reference.folder(), {.lazy = true});
    EngineOptions options;
    options.log_memory = false;
    Engine engine(world, model, options);
    EXPECT_THROW(
        save_pretrained(world, engine, *model, "/proc/nowhere/model"), Error);
  });
}

} // namespace tessera::zoo

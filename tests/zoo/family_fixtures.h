// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small model of each family of the zoo, by the name of its fixture, and its
// training. scripts/gpu_tests.sh packs those of the smoke test on CUDA.

#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/move_module.h"
#include "zoo/model_fixture.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo {

inline constexpr const char* kFamilyFixtures[] = {
    "arcee",         "bert_classifier",
    "chatglm",       "cohere",
    "cohere2",       "cpm1",
    "cpm2",          "cpm3",
    "ernie4_5",      "exaone4",
    "falcon",        "gemma",
    "gemma3_text",   "glm",
    "glm4",          "glm_2021",
    "gpt2",          "gpt_neo",
    "gptj",          "granite",
    "helium",        "llama3",
    "llama_yarn",    "longformer",
    "mae",           "ministral",
    "mistral",       "moco",
    "mpt",           "mt5",
    "nemotron",      "olmo",
    "olmo2",         "olmo3",
    "opt_350m",      "phi",
    "phi3",          "qwen2",
    "qwen2_moe",     "qwen3",
    "qwen3_moe",     "roberta",
    "roformer",      "seed_oss",
    "smollm3",       "stablelm",
    "starcoder2",    "swin_classifier",
    "t5_classifier", "vit_classifier"};

inline constexpr double kFamilyLearningRate = 0.05;
inline constexpr int kFamilySteps = 3; // the last loss has two updates behind

struct FamilyTraining {
  std::vector<double> losses; ///< of rank 0
  std::map<std::string, at::Tensor> weights; ///< at the end
};

/// Ranks have the same batch, but gradients of different sizes.
inline double family_loss_factor(int rank) {
  return rank + 1;
}

/// Plain LibTorch on the CPU, with what all ranks contribute.
inline FamilyTraining train_plain_family(const std::string& name, int ranks) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder());
  const ModelInput input = ModelInput::from_named(reference.tensors("in."));
  torch::optim::SGD optimizer(model->parameters(), kFamilyLearningRate);
  FamilyTraining training;
  for (int step = 0; step < kFamilySteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto loss = loss_of(model->forward(input), input);
      if (rank == 0) {
        training.losses.push_back(loss.item<double>());
      }
      (loss * (family_loss_factor(rank) / ranks)).backward();
    }
    optimizer.step();
  }
  for (const auto& item : model->named_parameters()) {
    training.weights[item.key()] = item.value().detach();
  }
  return training;
}

/// The same of an engine over all ranks, on the world's device.
inline FamilyTraining train_wrapped_family(
    World& world,
    const std::string& name) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder(), {.lazy = true});
  move_module(*model, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.rule = SgdOptions{};
  options.optimizer.lr = kFamilyLearningRate;
  options.optimizer.weight_decay = 0;
  Engine engine(world, model, options);
  const ModelInput input = input_on(
      ModelInput::from_named(reference.tensors("in.")), world.device());
  FamilyTraining training;
  for (int step = 0; step < kFamilySteps; ++step) {
    const auto loss = loss_of(model->forward(input), input);
    training.losses.push_back(loss.item<double>());
    engine.backward(loss * family_loss_factor(world.rank()));
    engine.step();
  }
  engine.for_each_parameter(
      [&](const std::string& key, const at::Tensor& value) {
        training.weights[key] = value.cpu().clone();
      });
  return training;
}

} // namespace tessera::zoo

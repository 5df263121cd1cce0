// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts that models on a device go on with: those of the CPU, and those that
// they write without a cache of keys and values.

#include "tessera/engine/engine.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/next_token.h"
#include "zoo/device_comparison.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::zoo::device_generation {

inline const std::vector<std::string>& models() {
  static const std::vector<std::string> all{
      device_comparison::kGroupedLlama, device_comparison::kGpt};
  return all;
}

inline GenerateOptions greedy() {
  return {.max_new_tokens = 12};
}

/// Tokens are drawn on the CPU: the same scores give the same ones.
inline GenerateOptions sampled() {
  GenerateOptions options = greedy();
  options.do_sample = true;
  options.temperature = 0.7;
  options.top_k = 9;
  options.seed = 4;
  return options;
}

/// @param pads the second of three prompts begins with padding.
inline ModelInput prompts_on(c10::Device device, bool pads) {
  torch::manual_seed(5);
  ModelInput prompt;
  prompt.input_ids = torch::randint(3, 29, {3, 7}, torch::kLong);
  if (pads) {
    prompt.attention_mask = torch::ones({3, 7}, torch::kLong);
    prompt.attention_mask[1].narrow(0, 0, 3).zero_();
  }
  return prompt.with_tensors(
      [&](const at::Tensor& tensor) { return tensor.to(device); });
}

/// Greedily, sampled and by beams, of prompts with and without padding, by a
/// model that an engine has sharded. Scores are off by a few 1e-6, and no two
/// tokens here are so close.
inline void expect_texts_of_the_cpu(World& world) {
  GenerateOptions several = sampled();
  several.num_return_sequences = 2;
  GenerateOptions beams = greedy();
  beams.num_beams = 3;
  for (const std::string& config : models()) {
    const auto on_cpu = device_comparison::model_on(at::kCPU, config);
    const auto model = device_comparison::model_on(world.device(), config);
    EngineOptions options;
    options.log_memory = false;
    const Engine engine(world, model, options);
    at::Tensor before;
    for (const GenerateOptions& way : {greedy(), sampled(), several, beams}) {
      for (const bool pads : {false, true}) {
        const at::Tensor expected =
            generate(*on_cpu, prompts_on(at::kCPU, pads), way);
        const at::Tensor found =
            generate(*model, prompts_on(world.device(), pads), way);
        EXPECT_TRUE(found.equal(expected)) << found << "\n" << expected;
        // Padding and ways matter.
        EXPECT_FALSE(before.defined() && before.equal(expected));
        before = expected;
      }
    }
  }
}

/// Each token again, from the whole text before it.
inline void expect_texts_of_no_cache(World& world) {
  const at::NoGradGuard no_grad;
  for (const std::string& config : models()) {
    const auto model = device_comparison::model_on(world.device(), config);
    for (const GenerateOptions& way : {greedy(), sampled()}) {
      const ModelInput prompt = prompts_on(world.device(), /*pads=*/false);
      at::Tensor rows = prompt.input_ids.cpu();
      const NextToken next(way, rows.size(0));
      for (int64_t i = 0; i < way.max_new_tokens; ++i) {
        ModelInput full;
        full.input_ids = rows.to(world.device());
        const at::Tensor last =
            model->forward(full).logits.select(1, rows.size(1) - 1);
        const at::Tensor chosen = next.choose(last.cpu().clone(), i);
        rows = at::cat({rows, chosen.unsqueeze(1)}, 1);
      }
      EXPECT_TRUE(generate(*model, prompt, way).equal(rows));
    }
  }
}

/// Logits of a text that is read in pieces of one and of several tokens.
inline void expect_logits_of_no_cache(World& world) {
  const at::NoGradGuard no_grad;
  for (const std::string& config : models()) {
    const auto model = device_comparison::model_on(world.device(), config);
    const at::Tensor ids = prompts_on(world.device(), /*pads=*/false).input_ids;
    ModelInput input;
    input.input_ids = ids;
    const at::Tensor full = model->forward(input).logits;
    KeyValueCache cache(ids.size(1));
    std::vector<at::Tensor> pieces;
    for (const int64_t tokens : {3, 1, 1, 2}) {
      input.input_ids = ids.narrow(1, cache.length(), tokens);
      input.cache = &cache;
      pieces.push_back(model->forward(input).logits);
      cache.advance(tokens);
    }
    EXPECT_LT(
        device_comparison::difference_of(at::cat(pieces, 1), full),
        device_comparison::kFloat32Tolerance);
  }
}

} // namespace tessera::zoo::device_generation

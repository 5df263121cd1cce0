// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tiny GLM with larger weights, so that it does not repeat one token; as
// tests/fixture_makers/text_generation.py makes it.

#include "tessera/zoo/models/model.h"

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace tessera::tests {

/// @param scales of blanks.json, by parts of the authors' names.
inline void scale_glm(zoo::Model& model, const nlohmann::json& scales) {
  const torch::NoGradGuard no_grad;
  const std::map<std::string, std::vector<std::string>> names{
      {"final_layernorm.bias", {"final_norm.bias"}},
      {"position_embeddings",
       {"embeddings.positions.weight", "embeddings.block_positions.weight"}},
      {"query_key_value.weight",
       {"attention.query.weight",
        "attention.key.weight",
        "attention.value.weight"}},
      {"dense",
       {"attention.output.weight",
        "attention.output.bias",
        "feed_forward.up.weight",
        "feed_forward.up.bias",
        "feed_forward.down.weight",
        "feed_forward.down.bias"}}};
  for (auto& item : model.named_parameters()) {
    for (const auto& [part, scale] : scales.items()) {
      for (const std::string& name : names.at(part)) {
        if (item.key().ends_with(name)) {
          item.value().mul_(scale.get<double>());
        }
      }
    }
  }
}

} // namespace tessera::tests

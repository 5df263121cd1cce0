// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders of small models with newly initialized weights and a tokenizer.

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"

#include <torch/torch.h>

#include <filesystem>
#include <string>

namespace tessera::zoo {

/// A model of a fixture's shape, with the vocabulary of a fixture's tokenizer,
/// 144 positions and without dropout.
/// @param padding its padding token; empty: none.
/// @param scale of matrices: newly initialized models say nearly the same of
///     all texts, those with greater weights do not.
inline void write_model_with_tokenizer(
    const std::filesystem::path& folder,
    const std::string& name,
    const std::string& tokenizer,
    const std::string& padding = {},
    const nlohmann::json& changes = nlohmann::json::object(),
    double scale = 1) {
  const auto file = fixture("tokenizers") / (tokenizer + ".json");
  const auto own = text::Tokenizer::from_file(file);
  nlohmann::json config = read_json(fixture("models") / name / "config.json");
  config["vocab_size"] = own.size();
  if (!padding.empty()) {
    config["pad_token_id"] = *own.id_of(padding);
  }
  for (const char* key : {"n_positions", "max_position_embeddings"}) {
    if (config.contains(key)) {
      config[key] = 144;
    }
  }
  for (const char* key :
       {"attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "dropout_rate",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob"}) {
    if (config.contains(key)) {
      config[key] = 0.0;
    }
  }
  config.update(changes);
  torch::manual_seed(3);
  const auto model = from_config(config);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 2) {
      parameter.mul_(scale);
    }
  }
  save_pretrained(*model, folder);
  std::filesystem::copy(
      file,
      folder / "tokenizer.json",
      std::filesystem::copy_options::overwrite_existing);
}

} // namespace tessera::zoo

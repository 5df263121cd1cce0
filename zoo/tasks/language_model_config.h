// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a configuration file of `tessera train` says of a language model.

#include "tessera/zoo/tasks/token_file.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Training of a language model, from the start or on. Paths are relative to
/// the working folder.
struct LanguageModelConfig : TrainingConfig {
  int64_t max_length = 1024; ///< tokens of a text
  std::filesystem::path train_file;
  std::filesystem::path heldout_file; ///< empty: nothing is scored
  TokenType token_type = TokenType::kUint16;
};

/// Reads a file, applies `key.path=value` overrides and checks everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
LanguageModelConfig read_language_model_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LanguageModelConfig` is the configuration of `tessera train` for the task
// "language_model".

#include "tessera/zoo/tasks/token_file.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Pretraining or fine-tuning of a language model. Paths are relative to the
/// working directory.
struct LanguageModelConfig : TrainingConfig {
  int64_t max_length = 1024; ///< sequence length in tokens
  std::filesystem::path train_file;
  std::filesystem::path heldout_file; ///< empty: no scoring
  TokenType token_type = TokenType::kUint16;
};

void visit_fields(runtime::OptionFields& fields, LanguageModelConfig& config);

/// Reads a file, applies `key.path=value` overrides and validates everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
LanguageModelConfig read_language_model_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/language_model_config.h"

#include "tessera/runtime/core/config.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

LanguageModelConfig read_language_model_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader = open_config(file, overrides);
  LanguageModelConfig config;
  read_task(reader, TaskKind::kLanguageModel);
  read_training_config(reader, config);
  read_model_source(reader, config);
  config.max_length =
      reader.get_object("model").get_int("max_length", {.min = 2}, 1024);
  const auto data = reader.get_object("data");
  config.train_file = data.get_string("train");
  config.heldout_file = data.get_string("heldout", "");
  config.token_type = data.get_enum<TokenType>(
      "token_type",
      {{"uint16", TokenType::kUint16}, {"int32", TokenType::kInt32}},
      config.token_type);
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo

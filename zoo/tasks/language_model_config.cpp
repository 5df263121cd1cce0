// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/language_model_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/tasks/foreign_keys.h"

#include <nlohmann/json.hpp>

namespace tessera {

namespace {

void read_model(const ConfigReader& model, LanguageModelConfig& config) {
  config.model_config = model.get_string("config", "");
  if (config.model_folder.empty() == config.model_config.empty()) {
    model.fail(
        "folder",
        "give it, for weights to go on with, or model.config, a config.json "
        "whose model starts with fresh ones; one of them");
  }
  if (config.lora && config.model_folder.empty()) {
    model.fail("lora", "an adapter is for weights to go on with: model.folder");
  }
  config.architecture = model.get_string("architecture", "");
  config.max_length = model.get_int("max_length", {.min = 2}, 1024);
}

} // namespace

LanguageModelConfig read_language_model_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const ConfigReader reader(
      parse_json(read_text_file(file), file.string()),
      file.string(),
      overrides);
  LanguageModelConfig config;
  read_task(reader, TaskKind::kLanguageModel);
  read_training_config(reader, config);
  if (config.parallel.sizes.expert > 1) {
    reader.get_object("parallel")
        .fail(
            "expert",
            "`tessera train` has one engine, and divided experts take two: use "
            "ExpertEngines from code");
  }
  read_model(reader.get_object("model"), config);
  const auto data = reader.get_object("data");
  config.train_file = data.get_string("train");
  config.heldout_file = data.get_string("heldout", "");
  config.token_type = data.get_enum<TokenType>(
      "token_type",
      {{"uint16", TokenType::kUint16}, {"int32", TokenType::kInt32}},
      config.token_type);
  reader.finish(foreign_keys());
  if (resolved != nullptr) {
    *resolved = reader.resolved();
  }
  return config;
}

} // namespace tessera

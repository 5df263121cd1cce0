// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/language_model_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_reader.h"
#include "tessera/runtime/io/config_file.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, LanguageModelConfig& config) {
  visit_training_fields(fields, config, TaskKind::kLanguageModel, [&] {
    visit_model_source(fields, config);
    fields.field(
        "max_length",
        config.max_length,
        {.min = 2},
        "tokens per sequence. At most the positions of the model");
  });
  fields.group("data", "", [&] {
    fields.field(runtime::required("train"), config.train_file, "a token file");
    fields.field(
        "heldout",
        config.heldout_file,
        "a token file (empty: nothing is scored)");
    fields.choice(
        "token_type",
        config.token_type,
        {{"uint16", TokenType::kUint16}, {"int32", TokenType::kInt32}},
        "type of the tokens in a token file, as nanoGPT writes them (`numpy.array(ids, \"uint16\").tofile(\"train.bin\")`)");
  });
}

LanguageModelConfig read_language_model_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader =
      runtime::read_config_file(file, overrides);
  LanguageModelConfig config;
  read_task(reader, TaskKind::kLanguageModel);
  runtime::read_fields(reader, config);
  finish_training_config(reader, config);
  check_model_source(reader, config);
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/finetune_config.h"

#include "tessera/runtime/core/config.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

FinetuneConfig read_finetune_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader = open_config(file, overrides);
  FinetuneConfig config;
  read_task(reader, TaskKind::kTextClassification);
  read_training_config(reader, config);
  // batches are padded to their longest text
  config.parallel.shapes_vary = true;
  const auto model = reader.get_object("model");
  if (config.model_folder.empty()) {
    model.fail("folder", "give the Hugging Face folder of a model");
  }
  config.problem_type = read_problem_type(
      model, /*multi_label=*/false, "single_label_classification");
  config.max_length = model.get_int("max_length", {.min = 8}, 128);
  const auto data = reader.get_object("data");
  config.train_file = data.get_string("train");
  config.heldout_file = data.get_string("heldout", "");
  auto& texts = config.columns.texts;
  texts = data.get_string_or_strings("text_key", texts);
  if (texts.empty() || texts.size() > 2) {
    data.fail("text_key", "give one key, or two for pairs of texts");
  }
  config.columns.label = data.get_string("label_key", "label");
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo

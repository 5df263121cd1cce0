// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/finetune_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_reader.h"
#include "tessera/runtime/io/config_file.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, FinetuneConfig& config) {
  visit_training_fields(fields, config, TaskKind::kTextClassification, [&] {
    std::optional<std::string> problem = "single_label_classification";
    if (!config.problem_type.empty()) {
      problem = config.problem_type;
    }
    fields.choice(
        "problem_type",
        problem,
        problem_types(/*multi_label=*/false),
        "transformers' key: `regression` predicts numbers");
    config.problem_type = *problem;
    fields.field(
        "max_length",
        config.max_length,
        {.min = 8},
        "tokens per text; longer ones are truncated. At most the positions of the model");
  });
  fields.group("data", "", [&] {
    fields.field(runtime::required("train"), config.train_file, "JSON lines");
    fields.field(
        "heldout",
        config.heldout_file,
        "JSON lines (empty: nothing is scored)");
    fields.one_or_many(
        "text_key",
        config.columns.texts,
        "key of the text in JSON lines; `[\"a\", \"b\"]`: pairs of texts");
    fields.field("label_key", config.columns.label, "key of the label there");
  });
}

FinetuneConfig read_finetune_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader =
      runtime::read_config_file(file, overrides);
  FinetuneConfig config;
  read_task(reader, TaskKind::kTextClassification);
  runtime::read_fields(reader, config);
  finish_training_config(reader, config);
  // batches are padded to their longest text
  config.parallel.shapes_vary = true;
  if (config.model_folder.empty()) {
    reader.get_object("model").fail(
        "folder", "give the Hugging Face folder of a model");
  }
  const auto& texts = config.columns.texts;
  if (texts.empty() || texts.size() > 2) {
    reader.get_object("data").fail(
        "text_key", "give one key, or two for pairs of texts");
  }
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo

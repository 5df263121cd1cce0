// SPDX-License-Identifier: Apache-2.0
// The task "text_classification": labeled texts in JSON lines, and a sequence
// classifier whose classes are their labels.
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/text_batches.h"
#include "tessera/zoo/tasks/text_classifier.h"
#include "tessera/zoo/tasks/training_config.h"

#include <optional>

namespace tessera::zoo {

namespace {

void visit_classifier(runtime::OptionFields& fields, TrainingConfig& config) {
  if (config.problem_type.empty()) {
    config.problem_type = "single_label_classification";
  }
  visit_problem_type(
      fields,
      config,
      {"single_label_classification", "regression"},
      "transformers' key: `regression` predicts numbers");
  fields.field(
      "max_length",
      config.max_length,
      {.min = 8},
      "tokens per text; longer ones are truncated. At most the positions of the model");
}

void visit_texts(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.field(runtime::required("train"), config.train_file, "JSON lines");
  fields.field(
      "heldout", config.heldout_file, "JSON lines (empty: nothing is scored)");
  fields.one_or_many(
      "text_key",
      config.columns.texts,
      "key of the text in JSON lines; `[\"a\", \"b\"]`: pairs of texts");
  fields.field("label_key", config.columns.label, "key of the label there");
}

void finish_texts(const runtime::ConfigReader& reader, TrainingConfig& config) {
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
}

LabelledTexts labelled_texts(
    const TrainingConfig& config,
    const std::filesystem::path& file,
    bool is_heldout) {
  auto texts =
      read_labelled_texts(file, config.columns, config.is_regression());
  if (is_log_rank_zero()) {
    warn_about_labels(texts, is_heldout);
  }
  return texts;
}

const char* predicted_by(HeadLabels labels) {
  switch (labels) {
    case HeadLabels::kNumbers:
      return "numbers";
    case HeadLabels::kClass:
      return "classes";
    case HeadLabels::kClasses:
      return "several classes per text";
    default:
      return "neither classes nor numbers";
  }
}

std::vector<LabelledEncoding> encoded(
    const TrainingConfig& config,
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const Tokenizer& tokenizer) {
  auto examples =
      encode_labelled_texts(texts, labels, tokenizer, config.max_length);
  if (const auto count = truncated_count(examples);
      count > 0 && is_log_rank_zero()) {
    log_info(
        "'{}': {} of {} texts are longer than model.max_length, {} tokens, and are truncated",
        texts.path.string(),
        count,
        examples.size(),
        config.max_length);
  }
  return examples;
}

Task open_texts(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  const auto tokenizer = std::make_shared<const Tokenizer>(
      Tokenizer::from_folder(config.model_folder));
  std::optional<LabelledTexts> train, heldout;
  if (state != ModelState::kTrained) {
    train = labelled_texts(config, config.train_file, /*is_heldout=*/false);
  }
  if (!config.heldout_file.empty()) {
    heldout = labelled_texts(config, config.heldout_file, /*is_heldout=*/true);
  }
  Task task;
  task.model = lazy_text_classifier(
      config.model_folder,
      train ? class_fields(*train) : nlohmann::json::object(),
      layer_context(parallel),
      config.strict);
  task.head = head_of(*task.model);
  const HeadLabels wanted =
      config.is_regression() ? HeadLabels::kNumbers : HeadLabels::kClass;
  TESSERA_CHECK(
      task.head->labels() == wanted,
      "model.problem_type is \"{}\", but the model in '{}' predicts {}",
      config.problem_type,
      config.model_folder.string(),
      predicted_by(task.head->labels()));
  check_positions(*task.model, config.max_length);
  const auto labels = config.is_regression() ? std::vector<std::string>()
                                             : classes_of(*task.model);
  const auto batches_of = [&](const std::optional<LabelledTexts>& texts) {
    return texts ? std::make_unique<TextBatches>(
                       tokenizer,
                       encoded(config, *texts, labels, *tokenizer),
                       labels.size(),
                       parallel.batches().sequence_multiple,
                       at::kCPU)
                 : nullptr;
  };
  task.train = batches_of(train);
  task.heldout = batches_of(heldout);
  return task;
}

} // namespace

const TaskKind kTextClassification{
    "text_classification",
    /*max_length=*/128,
    visit_classifier,
    visit_texts,
    finish_texts,
    open_texts};

} // namespace tessera::zoo

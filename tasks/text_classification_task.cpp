// SPDX-License-Identifier: Apache-2.0
// The task "text_classification": labeled texts in JSON lines or tables, and a
// sequence classifier whose classes are their labels.
#include "tessera/tasks/text_classification_task.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/prompt_batches.h"
#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/prompted_model.h"
#include "tessera/tasks/row_report.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/training_config.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/models/pretrained.h"

#include <algorithm>
#include <optional>

namespace tessera::tasks {

namespace {

void visit_classifier(runtime::OptionFields& fields, TrainingConfig& config) {
  if (config.problem_type.empty()) {
    config.problem_type = "single_label_classification";
  }
  visit_problem_type(
      fields,
      config,
      {"single_label_classification",
       "multi_label_classification",
       "regression"},
      "transformers' key: `multi_label_classification` predicts any number of classes per text, `regression` numbers");
  fields.field(
      "max_length",
      config.max_length,
      {.min = 8},
      "tokens per text; longer ones are truncated. At most the positions of the model");
}

void visit_texts(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.one_or_many(
      runtime::required("train"),
      config.data.train,
      "JSON lines, CSV or TSV: one file or several, also patterns such as `data/*.csv`");
  fields.one_or_many(
      "heldout",
      config.data.heldout,
      "the same (empty: nothing is scored); several files are also scored one by one");
  auto& options = config.as<TextClassificationOptions>();
  TextClassificationColumns& columns = options.columns;
  std::vector<std::pair<std::string, const TextPreset*>> presets{
      {"none", nullptr}};
  for (const TextPreset& preset : text_presets()) {
    presets.emplace_back(preset.name, &preset);
  }
  fields.choice(
      "preset",
      columns.preset,
      presets,
      "a published data set: its keys, labels and metrics, and `data.train` may be the folder with its files");
  fields.one_or_many(
      "text_key",
      columns.texts,
      "key or column of the text; `[\"a\", \"b\"]`: pairs of texts");
  fields.field("label_key", columns.label, "key or column of the label");
  fields.field(
      "label_separator",
      columns.label_separator,
      "with several labels per text: what is between them where they are one string");
  visit_fields(fields, columns.rows);
  fields.field(
      "template",
      columns.prompt,
      "instead of a classifier, a language model goes on with the label's words: `{passage} question: {question}? answer: [label]`, with keys or columns in braces; GLM of 2021 fills a blank with them: `{premise}? [MASK], {hypothesis}`. Of a preset also `{first_text}` and `{second_text}`, what a classifier is given");
  fields.field(
      "verbalizers",
      options.verbalizers,
      "with `template`: the words of labels, `[\"true=yes\", \"false=no\"]`, of each label that there is; of a preset, a label without stands for itself");
  fields.one_or_many(
      "metric",
      options.metrics,
      "what is measured on `data.heldout`, the most important first: `accuracy`, `f1` (of the second of two classes), `f1_macro`, `f1_micro`, `matthews`; of numbers `pearson`, `spearman`. By default accuracy; of several labels `f1_micro`, `f1_macro` and `accuracy`; of numbers both correlations");
}

void finish_texts(const runtime::ConfigReader& reader, TrainingConfig& config) {
  finish_text_files(reader, config);
  auto& options = config.as<TextClassificationOptions>();
  TextClassificationColumns& columns = options.columns;
  const auto data = reader.get_object("data");
  if (columns.texts.empty() || columns.texts.size() > 2) {
    data.fail("text_key", "give one key, or two for pairs of texts");
  }
  if (const TextPreset* preset = columns.preset) {
    columns.texts = preset->text_keys.front();
    config.problem_type = preset->problem_type;
    if (options.metrics.empty()) {
      options.metrics = preset->metrics;
    }
    if (config.data.train.size() == 1 &&
        std::filesystem::is_directory(config.data.train.front())) {
      const std::filesystem::path folder = config.data.train.front();
      reader.run_check([&] {
        config.data.train = preset_files(*preset, folder, /*heldout=*/false);
        if (config.data.heldout.empty()) {
          config.data.heldout = preset_files(*preset, folder, /*heldout=*/true);
        }
      });
    }
  }
  if (!columns.prompt.empty()) {
    reader.run_check([&] { PromptTemplate(columns.prompt); });
    if (config.problem_type != "single_label_classification") {
      data.fail(
          "template",
          "it is for one class per text, not for " + config.problem_type);
    }
  } else if (!options.verbalizers.empty()) {
    data.fail("verbalizers", "they are for data.template; set it");
  }
}

const TextClassificationOptions& text_options(const TrainingConfig& config) {
  return config.as<TextClassificationOptions>();
}

LabelledTexts labelled_texts(
    const TrainingConfig& config,
    const std::vector<std::string>& names,
    bool is_heldout) {
  auto texts = read_labelled_texts(
      text::matching_files(names),
      text_options(config).columns,
      text_labels_of(config.problem_type));
  if (is_log_rank_zero()) {
    warn_about_labels(texts, is_heldout);
  }
  return texts;
}

const char* predicted_by(zoo::HeadLabels labels) {
  switch (labels) {
    case zoo::HeadLabels::kNumbers:
      return "numbers";
    case zoo::HeadLabels::kClass:
      return "classes";
    case zoo::HeadLabels::kClasses:
      return "several classes per text";
    default:
      return "neither classes nor numbers";
  }
}

std::vector<LabelledEncoding> encoded(
    const TrainingConfig& config,
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const text::Tokenizer& tokenizer,
    int64_t vocab) {
  const auto in_data = zoo::class_names_in_data(labels, labels_of(texts));
  if (const std::string ids = zoo::class_ids_text(labels, in_data);
      !ids.empty() && is_log_rank_zero()) {
    log_info("'{}': {}", texts.name(), ids);
  }
  auto examples = encode_labelled_texts(
      texts,
      in_data,
      tokenizer,
      config.max_length,
      text_options(config).columns.rows.bad_rows);
  RowReport report("text");
  for (const LabelledEncoding& example : examples) {
    check_token_ids(
        example.encoding.ids(), tokenizer, vocab, config.model_folder);
    report.add(example.encoding.is_truncated);
  }
  report.log_truncated(texts.name(), "model.max_length", config.max_length);
  return examples;
}

/// Which labels there are follows from data.verbalizers, if it is given and no
/// preset says it.
/// @throws Error naming a label of `texts` that has no words.
void check_have_words(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const TextClassificationOptions& options) {
  if (options.verbalizers.empty() || options.columns.preset != nullptr ||
      options.columns.rows.bad_rows != text::BadRows::kError) {
    return;
  }
  for (const LabelledText& text : texts.texts) {
    for (const std::string& label : text.labels) {
      TESSERA_CHECK(
          std::find(labels.begin(), labels.end(), label) != labels.end(),
          "{}: data.verbalizers has no words for the label '{}', but for '{}'; add \"{}=WORDS\", which may be \"{}={}\"",
          texts.place(text),
          label,
          runtime::join_names(labels),
          label,
          label,
          label);
    }
  }
}

/// A language model that goes on with prompts.
Task open_prompts(
    const TrainingConfig& config,
    ParallelRun& parallel,
    ModelState state,
    const text::Tokenizer& tokenizer,
    const std::optional<LabelledTexts>& train,
    const std::optional<LabelledTexts>& heldout) {
  Task task;
  task.model = prompted_model(config, zoo::layer_context(parallel));
  task.head = head_of(*task.model);
  check_positions(*task.model, config.max_length);
  const PromptTemplate prompt(text_options(config).columns.prompt);
  check_template(prompt, *task.model);
  const PromptKind kind = prompt_kind_of(*task.model);
  TextInputs inputs = prompt_inputs(*task.model, tokenizer);
  inputs.multiple_of = parallel.batches().sequence_multiple;
  const auto labels = prompted_labels(config, train);
  const auto words = verbalizers_of(labels, text_options(config).verbalizers);
  const auto batches_of =
      [&](const std::optional<LabelledTexts>& texts,
          bool scores_labels) -> std::unique_ptr<PromptBatches> {
    if (!texts) {
      return nullptr;
    }
    check_have_words(*texts, labels, text_options(config));
    auto examples = labelled_examples(
        *texts, labels, text_options(config).columns.rows.bad_rows);
    std::vector<PromptedText> prompts;
    RowReport report("text");
    for (const LabelledEncoding& example : examples) {
      prompts.push_back(prompted_text(
          {texts->texts[example.text].text, prompt.separator()},
          words,
          tokenizer,
          kind,
          config.max_length));
      prompts.back().label = static_cast<size_t>(example.labels.front());
      report.add(prompts.back().is_truncated);
      for (const PromptedLabel& one : prompts.back().labels) {
        for (const auto* ids : {&one.input, &one.words}) {
          check_token_ids(
              *ids, tokenizer, task.head->vocab(), config.model_folder);
        }
      }
    }
    report.log_truncated(texts->name(), "model.max_length", config.max_length);
    TextBatches score(
        std::move(examples),
        texts->files,
        zoo::HeadLabels::kClass,
        labels.size(),
        text_metrics_for(
            text_options(config).metrics,
            zoo::HeadLabels::kClass,
            labels.size()),
        inputs);
    return std::make_unique<PromptBatches>(
        std::move(prompts), scores_labels, kind, std::move(score), inputs);
  };
  if (state != ModelState::kTrained) {
    task.train = batches_of(train, /*scores_labels=*/false);
  }
  task.heldout = batches_of(heldout, /*scores_labels=*/true);
  return task;
}

/// Metrics of presets with two classes are about the second one.
zoo::ClassOrder class_order_of(const TrainingConfig& config) {
  const TextPreset* preset = text_options(config).columns.preset;
  return preset != nullptr && preset->labels.size() == 2
             ? zoo::ClassOrder::kAsGiven
             : zoo::ClassOrder::kOfCheckpoint;
}

zoo::WantedHead text_head(const TrainingConfig& config) {
  return text_options(config).columns.prompt.empty()
             ? zoo::WantedHead{"classifier of texts", classifies_texts}
             : zoo::WantedHead{"language model", goes_on_with_prompts};
}

std::shared_ptr<zoo::Model> base_of_texts(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  if (!text_options(config).columns.prompt.empty()) {
    return prompted_model(config, context);
  }
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  return lazy_text_classifier(
      config.model_folder,
      config.is_regression() ? class_fields({}, config.problem_type)
                             : class_fields(read_labelled_texts(
                                   config.train_files(),
                                   text_options(config).columns,
                                   text_labels_of(config.problem_type))),
      context,
      config.strict,
      &tokenizer,
      class_order_of(config));
}

Task open_texts(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  std::optional<LabelledTexts> train, heldout;
  if (state != ModelState::kTrained || labels_are_in_data(config)) {
    train = labelled_texts(config, config.data.train, /*is_heldout=*/false);
  }
  if (!config.data.heldout.empty()) {
    heldout = labelled_texts(config, config.data.heldout, /*is_heldout=*/true);
  }
  if (!text_options(config).columns.prompt.empty()) {
    return open_prompts(config, parallel, state, tokenizer, train, heldout);
  }
  Task task;
  task.model = lazy_text_classifier(
      config.model_folder,
      train ? class_fields(*train) : nlohmann::json::object(),
      zoo::layer_context(parallel),
      config.strict,
      &tokenizer,
      class_order_of(config));
  task.head = head_of(*task.model);
  const zoo::HeadLabels wanted = text_labels_of(config.problem_type);
  TESSERA_CHECK(
      task.head->labels() == wanted,
      "model.problem_type is \"{}\", but the model in '{}' predicts {}",
      config.problem_type,
      config.model_folder.string(),
      predicted_by(task.head->labels()));
  check_positions(*task.model, config.max_length);
  TextInputs inputs =
      text_inputs(*task.model, *task.head, tokenizer, config.model_folder);
  inputs.multiple_of = parallel.batches().sequence_multiple;
  const auto labels = config.is_regression() ? std::vector<std::string>()
                                             : classes_of(*task.model);
  const auto metrics =
      text_metrics_for(text_options(config).metrics, wanted, labels.size());
  const auto batches_of = [&](const std::optional<LabelledTexts>& texts) {
    return texts
               ? std::make_unique<TextBatches>(
                     encoded(
                         config, *texts, labels, tokenizer, task.head->vocab()),
                     texts->files,
                     wanted,
                     labels.size(),
                     metrics,
                     inputs)
               : nullptr;
  };
  task.train = batches_of(train);
  task.heldout = batches_of(heldout);
  return task;
}

} // namespace

const TaskKind kTextClassification{
    .name = "text_classification",
    .max_length = 128,
    .options = options_of<TextClassificationOptions>,
    .visit_model = visit_classifier,
    .visit_data = visit_texts,
    .finish = finish_texts,
    .open = open_texts,
    .base_model = base_of_texts,
    .wanted_head = text_head,
    .takes_curriculum = true};

} // namespace tessera::tasks

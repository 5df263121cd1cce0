// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_predictor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/prompted_model.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/text/rows/file_patterns.h"

#include <torch/types.h>

#include <optional>
#include <utility>

namespace tessera::tasks {

namespace {

const TextClassificationOptions& predicted_options(
    const TrainingConfig& config) {
  return config.as<TextClassificationOptions>();
}

class ClassifierPredictor : public TextPredictor {
 public:
  ClassifierPredictor(TrainedModel trained, c10::Device device)
      : TextPredictor(
            class_labels_of(trained),
            predicted_options(trained.config).columns.texts),
        trained_(std::move(trained)),
        tokenizer_(text::Tokenizer::from_folder(trained_.config.model_folder)),
        inputs_(text_inputs(
            *trained_.model,
            *trained_.head,
            tokenizer_,
            trained_.config.model_folder)) {
    inputs_.device = device;
    trained_.place(device);
    options_.truncation.max_length = trained_.config.max_length;
  }

  TextPair text_of(const text::TextRow& row) const override {
    LabelledText text = text_in(row.values, keys(), row.place(), "--text-key");
    check_is_not_blank(
        text, keys(), row.place(), "--set data.skip_bad_rows=true");
    return {std::move(text.text), std::move(text.second)};
  }

  std::vector<std::vector<double>> predict(
      const std::vector<TextPair>& texts) const override {
    const at::NoGradGuard no_grad;
    std::vector<text::Encoding> encodings;
    for (const TextPair& text : texts) {
      encodings.push_back(
          keys().size() > 1
              ? tokenizer_.encode_pair(text.text, text.second, options_)
              : tokenizer_.encode(text.text, options_));
    }
    return class_values(
        trained_.model->forward(padded_input(encodings, inputs_)).logits,
        labels().kind);
  }

 private:
  TrainedModel trained_;
  text::Tokenizer tokenizer_;
  TextInputs inputs_;
  text::EncodeOptions options_;
};

class PromptPredictor : public TextPredictor {
 public:
  PromptPredictor(
      TrainedModel trained,
      std::vector<std::string> labels,
      const PromptTemplate& prompt,
      c10::Device device)
      : TextPredictor({zoo::HeadLabels::kClass, labels}, prompt.keys()),
        trained_(std::move(trained)),
        tokenizer_(text::Tokenizer::from_folder(trained_.config.model_folder)),
        prompt_(prompt),
        words_(verbalizers_of(
            labels,
            predicted_options(trained_.config).verbalizers)),
        inputs_(prompt_inputs(*trained_.model, tokenizer_)) {
    inputs_.device = device;
    trained_.place(device);
  }

  TextPair text_of(const text::TextRow& row) const override {
    return {prompt_.fill(row), ""};
  }

  std::vector<std::vector<double>> predict(
      const std::vector<TextPair>& texts) const override {
    const at::NoGradGuard no_grad;
    const PromptKind kind = prompt_kind_of(*trained_.model);
    std::vector<PromptedText> prompts;
    for (const TextPair& text : texts) {
      prompts.push_back(prompted_text(
          {text.text, prompt_.separator()},
          words_,
          tokenizer_,
          kind,
          trained_.config.max_length));
    }
    std::vector<const PromptedLabel*> rows;
    for (const PromptedText& prompt : prompts) {
      for (const PromptedLabel& label : prompt.labels) {
        rows.push_back(&label);
      }
    }
    const zoo::ModelInput input = prompted_input(rows, kind, inputs_);
    const at::Tensor likelihoods = label_likelihoods(
        trained_.model->forward(input).logits, input.labels, kind);
    return class_values(
        likelihoods.view({-1, static_cast<int64_t>(words_.size())}),
        zoo::HeadLabels::kClass);
  }

 private:
  TrainedModel trained_;
  text::Tokenizer tokenizer_;
  PromptTemplate prompt_;
  std::vector<std::string> words_; ///< of the labels
  TextInputs inputs_;
};

std::unique_ptr<TextPredictor> open_prompts_of(
    TrainedModel trained,
    c10::Device device) {
  const TrainingConfig& config = trained.config;
  TESSERA_CHECK(
      trained.head != nullptr && goes_on_with_prompts(*trained.head),
      "'{}' has no language model, which data.template needs; it has a {}",
      trained.folder.string(),
      trained.model->architecture());
  std::optional<LabelledTexts> train;
  if (labels_are_in_data(config)) {
    TESSERA_CHECK(
        !config.data.train.empty(),
        "data.template: nothing says what the labels are; name them with data.verbalizers, such as --set 'data.verbalizers=[\"true=yes\", \"false=no\"]'");
    train = read_labelled_texts(
        config.train_files(),
        predicted_options(config).columns,
        text_labels_of(config.problem_type));
  }
  auto labels = prompted_labels(config, train);
  const PromptTemplate prompt(predicted_options(config).columns.prompt);
  check_template(prompt, *trained.model);
  return std::make_unique<PromptPredictor>(
      std::move(trained), std::move(labels), prompt, device);
}

} // namespace

std::unique_ptr<TextPredictor> TextPredictor::open(
    TrainedModel trained,
    c10::Device device) {
  check_positions(*trained.model, trained.config.max_length);
  if (!predicted_options(trained.config).columns.prompt.empty()) {
    return open_prompts_of(std::move(trained), device);
  }
  return std::make_unique<ClassifierPredictor>(std::move(trained), device);
}

} // namespace tessera::tasks

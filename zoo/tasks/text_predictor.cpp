// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_predictor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/run_folder.h"
#include "tessera/zoo/tasks/text_batches.h"
#include "tessera/zoo/tasks/text_classifier.h"
#include "tessera/zoo/tasks/training_config.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace fs = std::filesystem;

namespace {

/// A classifier without memory, and what its run was configured with.
struct Loaded {
  std::shared_ptr<Model> model;
  fs::path tokenizer; ///< its folder
  std::vector<std::string> text_keys = {"text"};
  int64_t max_length = 0; ///< 0: not configured
};

Loaded loaded_folder(const fs::path& folder) {
  FromPretrainedOptions options;
  options.lazy = true;
  return {from_pretrained(folder, options), folder};
}

Loaded loaded_run(const fs::path& run) {
  const TrainingConfig config =
      read_training_config(run / "config.json", {}, &kTextClassification);
  TESSERA_CHECK(
      config.columns.prompt.empty(),
      "'{}' has a language model that goes on with data.template, no classifier; score texts with `tessera eval {} data.heldout=FILE`, or write prompts for `tessera generate --model {}`",
      run.string(),
      run.string(),
      run.string());
  Loaded loaded;
  if (config.lora && !config.lora->merge && fs::exists(run / "adapter")) {
    const Tokenizer tokenizer = Tokenizer::from_folder(config.model_folder);
    loaded.model = lazy_text_classifier(
        config.model_folder,
        config.is_regression() ? class_fields({}, config.problem_type)
                               : class_fields(read_labelled_texts(
                                     config.train_files(),
                                     config.columns,
                                     text_labels_of(config.problem_type))),
        {},
        config.strict,
        &tokenizer);
    load_lora(*loaded.model, run / "adapter");
    loaded.tokenizer = config.model_folder;
  } else {
    loaded = loaded_folder(model_folder_of(run));
  }
  loaded.text_keys = config.columns.texts;
  loaded.max_length = config.max_length;
  return loaded;
}

Loaded loaded_from(const fs::path& folder) {
  TESSERA_CHECK(
      fs::exists(folder / "config.json"),
      "'{}' {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      fs::exists(folder) ? "has no config.json" : "does not exist");
  return is_run_folder(folder) ? loaded_run(folder) : loaded_folder(folder);
}

} // namespace

TextPredictor::TextPredictor(
    const fs::path& folder,
    int64_t max_length,
    c10::Device device) {
  const Loaded loaded = loaded_from(folder);
  model_ = loaded.model;
  text_keys_ = loaded.text_keys;
  const auto head = model_->head();
  labels_ = head == nullptr ? HeadLabels::kOther : head->labels();
  TESSERA_CHECK(
      predicts_for_examples(labels_),
      "'{}' has no trained classifier: architectures in its config.json is {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      runtime::show_json(model_->config().at("architectures")));
  tokenizer_.emplace(Tokenizer::from_folder(loaded.tokenizer));
  inputs_ = text_inputs(*model_, *head, *tokenizer_, loaded.tokenizer);
  inputs_.device = device;
  move_module(*model_, device);
  materialize(*model_);
  model_->eval();
  if (labels_ != HeadLabels::kNumbers) {
    classes_ = classes_of(*model_);
  }
  options_.truncation.max_length = max_length != 0 ? max_length
                                   : loaded.max_length != 0
                                       ? loaded.max_length
                                       : model_->position_limit().value_or(0);
  check_positions(*model_, options_.truncation.max_length);
}

std::vector<std::vector<double>> TextPredictor::predict(
    const std::vector<TextPair>& texts,
    bool are_pairs) const {
  const at::NoGradGuard no_grad;
  std::vector<Encoding> encodings;
  for (const TextPair& text : texts) {
    encodings.push_back(
        are_pairs ? tokenizer_->encode_pair(text.text, text.second, options_)
                  : tokenizer_->encode(text.text, options_));
  }
  const ModelInput input = padded_input(encodings, inputs_);
  const at::Tensor logits =
      model_->forward(input).logits.to(at::kCPU, at::kDouble);
  const at::Tensor scores = labels_ == HeadLabels::kNumbers ? logits
                            : labels_ == HeadLabels::kClasses
                                ? logits.sigmoid()
                                : logits.softmax(-1);
  std::vector<std::vector<double>> values;
  for (int64_t row = 0; row < scores.size(0); ++row) {
    const at::Tensor own = scores[row].contiguous();
    const auto* begin = own.const_data_ptr<double>();
    values.emplace_back(begin, begin + own.numel());
  }
  return values;
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_predictor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/tasks/run_folder.h"
#include "tessera/zoo/tasks/text_batches.h"
#include "tessera/zoo/tasks/text_classifier.h"
#include "tessera/zoo/tasks/training_config.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace fs = std::filesystem;

namespace {

/// @throws tessera::Error on a folder whose classifier would be newly
///     initialized.
void check_has_classifier(const fs::path& folder) {
  const auto config = JsonFields::from_file(folder / "config.json");
  const auto classes =
      config.object().value("architectures", nlohmann::json::array());
  const std::string name =
      classes.is_array() && !classes.empty() && classes.front().is_string()
          ? classes.front().get<std::string>()
          : "";
  TESSERA_CHECK(
      name.ends_with("ForSequenceClassification"),
      "'{}' has no trained classifier: architectures in its config.json is {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      runtime::show_json(classes));
}

} // namespace

TextPredictor::TextPredictor(
    const fs::path& folder,
    int64_t max_length,
    c10::Device device) {
  TESSERA_CHECK(
      fs::exists(folder / "config.json"),
      "'{}' {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      fs::exists(folder) ? "has no config.json" : "does not exist");
  int64_t length_of_run = 0;
  if (is_run_folder(folder)) {
    length_of_run = load_run(folder);
  } else {
    check_has_classifier(folder);
    load(folder);
  }
  move_module(*model_, device);
  materialize(*model_);
  model_->eval();
  labels_ = head_of(*model_)->labels();
  if (labels_ != HeadLabels::kNumbers) {
    classes_ = classes_of(*model_);
  }
  options_.max_length = max_length != 0 ? max_length
                        : length_of_run != 0
                            ? length_of_run
                            : model_->position_limit().value_or(0);
  check_positions(*model_, options_.max_length);
}

void TextPredictor::load(const fs::path& folder) {
  model_ = lazy_text_classifier(folder);
  tokenizer_ =
      std::make_unique<BertTokenizer>(BertTokenizer::from_folder(folder));
}

int64_t TextPredictor::load_run(const fs::path& run) {
  const TrainingConfig config =
      read_training_config(run / "config.json", {}, &kTextClassification);
  text_keys_ = config.columns.texts;
  if (config.lora && !config.lora->merge && fs::exists(run / "adapter")) {
    model_ = lazy_text_classifier(
        config.model_folder,
        config.is_regression() ? class_fields({}, config.problem_type)
                               : class_fields(read_labelled_texts(
                                     config.train_file, config.columns)));
    load_lora(*model_, run / "adapter");
    tokenizer_ = std::make_unique<BertTokenizer>(
        BertTokenizer::from_folder(config.model_folder));
  } else {
    load(model_folder_of(run));
  }
  return config.max_length;
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
  const ModelInput input = padded_input(
      *tokenizer_,
      encodings,
      /*multiple_of=*/1,
      model_->parameters().front().device());
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

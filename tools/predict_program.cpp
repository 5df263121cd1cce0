// SPDX-License-Identifier: Apache-2.0
// `tessera predict RUN [TEXT...]`: classifies texts with a trained model.

#include "program_main.h"
#include "text_source.h"

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/position_limit.h"
#include "tessera/zoo/tasks/run_folder.h"
#include "tessera/zoo/tasks/text_classification_task.h"
#include "tessera/zoo/tasks/text_classifier.h"
#include "tessera/zoo/tasks/trained_head.h"

#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

struct PredictArguments {
  std::string model;
  std::vector<std::string> texts;
  std::string input;
  std::vector<std::string> text_keys; ///< empty: those of the run
  int64_t max_length = 0; ///< 0: that of the run
  int64_t batch_size = 32;
  size_t top = 1;
  bool as_json = false;
};

/// A trained model and what its run was configured with.
struct TrainedClassifier {
  fs::path tokenizer; ///< its folder
  std::shared_ptr<zoo::Model> model;
  std::vector<std::string> text_keys = {"text"};
  int64_t max_length = 0; ///< 0: not configured
};

/// The classifier of a run whose adapter was not merged.
std::shared_ptr<zoo::Model> adapted_model(
    const fs::path& run,
    const zoo::FinetuneConfig& config) {
  const auto model = config.is_regression()
                         ? zoo::lazy_text_regressor(config.model_folder)
                         : zoo::lazy_text_classifier(
                               config.model_folder,
                               zoo::labels_of(zoo::read_labelled_texts(
                                   config.train_file, config.columns)));
  zoo::load_lora(*model, run / "adapter");
  return model;
}

TrainedClassifier trained_in_run(const fs::path& run) {
  const auto config =
      zoo::read_finetune_config(run / "config.json", {}, nullptr);
  TrainedClassifier trained;
  trained.text_keys = config.columns.texts;
  trained.max_length = config.max_length;
  if (config.lora && !config.lora->merge && fs::exists(run / "adapter")) {
    trained.tokenizer = config.model_folder;
    trained.model = adapted_model(run, config);
    return trained;
  }
  trained.tokenizer = zoo::model_folder_of(run);
  trained.model = zoo::lazy_text_classifier(trained.tokenizer);
  return trained;
}

/// @throws tessera::Error on a folder whose classifier would be newly
///     initialized.
void check_has_classifier(const fs::path& folder) {
  const auto config = zoo::JsonFields::from_file(folder / "config.json");
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

TrainedClassifier trained_in(const fs::path& folder) {
  TESSERA_CHECK(
      fs::exists(folder / "config.json"),
      "'{}' {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      fs::exists(folder) ? "has no config.json" : "does not exist");
  if (zoo::is_run_folder(folder)) {
    return trained_in_run(folder);
  }
  check_has_classifier(folder);
  TrainedClassifier trained;
  trained.tokenizer = folder;
  trained.model = zoo::lazy_text_classifier(folder);
  return trained;
}

/// Computes and prints predictions.
class Predictor {
 public:
  /// @param text_keys two for pairs.
  Predictor(
      const PredictArguments& arguments,
      TrainedClassifier trained,
      std::vector<std::string> text_keys)
      : arguments_(arguments),
        text_keys_(std::move(text_keys)),
        model_(std::move(trained.model)),
        tokenizer_(zoo::BertTokenizer::from_folder(trained.tokenizer)),
        predicts_numbers_(zoo::predicts_numbers(*model_)),
        has_several_labels_(zoo::trained_head(*model_).has_several_labels) {
    if (!predicts_numbers_) {
      labels_ = zoo::classes_of(*model_);
    }
    options_.max_length = arguments.max_length != 0 ? arguments.max_length
                          : trained.max_length != 0
                              ? trained.max_length
                              : zoo::position_limit(*model_).value_or(0);
    zoo::check_positions(*model_, options_.max_length);
  }

  void print(const std::vector<GivenText>& texts) {
    std::vector<zoo::Encoding> encodings;
    for (const GivenText& text : texts) {
      encodings.push_back(
          are_pairs() ? tokenizer_.encode_pair(text.text, text.second, options_)
                      : tokenizer_.encode(text.text, options_));
    }
    const at::Tensor logits = model_
                                  ->forward(zoo::padded_input(
                                      tokenizer_,
                                      encodings,
                                      /*multiple_of=*/1,
                                      model_->parameters().front().device()))
                                  .logits.to(at::kCPU, at::kDouble);
    const at::Tensor scores = predicts_numbers_     ? logits
                              : has_several_labels_ ? logits.sigmoid()
                                                    : logits.softmax(-1);
    for (size_t row = 0; row < texts.size(); ++row) {
      const at::Tensor own = scores[static_cast<int64_t>(row)].contiguous();
      const auto* begin = own.const_data_ptr<double>();
      const std::vector<double> values(begin, begin + own.numel());
      const std::string line = arguments_.as_json
                                   ? json_line(texts[row], values)
                                   : text_line(texts[row], values);
      std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout); // before the next text is typed
  }

 private:
  /// Classes from the most likely one.
  static std::vector<size_t> ranked(const std::vector<double>& values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return values[a] > values[b];
    });
    return order;
  }

  bool are_pairs() const {
    return text_keys_.size() > 1;
  }

  std::string json_line(
      const GivenText& text,
      const std::vector<double>& values) const {
    nlohmann::ordered_json json{{text_keys_.front(), text.text}};
    if (are_pairs()) {
      json[text_keys_.back()] = text.second;
    }
    if (predicts_numbers_) {
      json["value"] = values.size() == 1 ? nlohmann::ordered_json(values[0])
                                         : nlohmann::ordered_json(values);
    } else {
      nlohmann::ordered_json probabilities;
      nlohmann::ordered_json likely = nlohmann::ordered_json::array();
      for (size_t i = 0; i < values.size(); ++i) {
        probabilities[labels_[i]] = values[i];
        if (values[i] >= kLikely) {
          likely.push_back(labels_[i]);
        }
      }
      if (has_several_labels_) {
        json["labels"] = likely;
      } else {
        const size_t best = ranked(values).front();
        json["label"] = labels_[best];
        json["probability"] = values[best];
      }
      json["probabilities"] = probabilities;
    }
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string text_line(
      const GivenText& text,
      const std::vector<double>& values) const {
    std::string line;
    const auto add =
        [&](const std::string& name, const char* format, double x) {
          std::array<char, 64> number{};
          std::snprintf(number.data(), number.size(), format, x);
          line += (line.empty() ? "" : ", ") + name + number.data();
        };
    if (predicts_numbers_) {
      for (const double value : values) {
        add("", "%.4f", value);
      }
    } else {
      size_t shown = 0;
      for (const size_t i : ranked(values)) {
        if (has_several_labels_ ? values[i] >= kLikely
                                : shown++ < arguments_.top) {
          add(labels_[i] + " ", "%.1f %%", 100 * values[i]);
        }
      }
    }
    std::string one_line =
        are_pairs() ? text.text + " | " + text.second : text.text;
    std::replace_if(
        one_line.begin(),
        one_line.end(),
        [](char c) { return c == '\n' || c == '\t' || c == '\r'; },
        ' ');
    return (line.empty() ? "no label" : line) + "\t" + one_line;
  }

  static constexpr double kLikely = 0.5; ///< of several labels

  const PredictArguments& arguments_;
  std::vector<std::string> text_keys_;
  std::shared_ptr<zoo::Model> model_;
  zoo::BertTokenizer tokenizer_;
  bool predicts_numbers_;
  bool has_several_labels_;
  std::vector<std::string> labels_;
  zoo::EncodeOptions options_;
};

void predict(const PredictArguments& arguments) {
  check_one_process("predict");
  TESSERA_CHECK(
      arguments.text_keys.size() <= 2,
      "--text-key is given {} times; give it once, or twice for pairs of texts",
      arguments.text_keys.size());
  const World& world = init();
  TrainedClassifier trained = trained_in(arguments.model);
  const auto keys =
      arguments.text_keys.empty() ? trained.text_keys : arguments.text_keys;
  move_module(*trained.model, world.device());
  materialize(*trained.model);
  trained.model->eval();
  const at::NoGradGuard no_grad;
  Predictor predictor(arguments, std::move(trained), keys);
  TextSource source(arguments.texts, arguments.input, keys);
  const auto count = static_cast<size_t>(arguments.batch_size);
  for (auto texts = source.next(count); !texts.empty();
       texts = source.next(count)) {
    predictor.print(texts);
  }
}

} // namespace

int run_predict(int argc, char** argv) {
  CLI::App app(
      "Classifies texts with a trained text classifier: prints the label, its "
      "probability and the text, or the number that a regression predicts",
      "tessera predict");
  PredictArguments arguments;
  app.add_option(
         "run",
         arguments.model,
         "Run folder of `tessera train` with task text_classification, or "
         "Hugging Face folder of a sequence classifier")
      ->required();
  app.add_option(
      "texts",
      arguments.texts,
      "The texts; none: lines of --input or standard input");
  app.add_option(
      "--input",
      arguments.input,
      "File of one text per line (of pairs: two, separated by a tab), or of "
      "JSON objects");
  app.add_option(
         "--text-key",
         arguments.text_keys,
         "Key of the text in JSON objects; twice for pairs; default: data.text_key "
         "of the run, or text")
      ->allow_extra_args(false);
  app.add_option(
         "--max-length",
         arguments.max_length,
         "Tokens to truncate texts to; default: model.max_length of the run, or "
         "the positions of the model")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 20));
  app.add_option(
         "--batch-size",
         arguments.batch_size,
         "Texts per forward pass; default 32")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option(
         "--top", arguments.top, "Number of most likely labels to print")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  app.add_flag(
      "--json",
      arguments.as_json,
      "Print one JSON object per text, with the probabilities of all labels");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  predict(arguments);
  return 0;
}

} // namespace tessera::tools

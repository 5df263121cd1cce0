// SPDX-License-Identifier: Apache-2.0
// `tessera predict RUN [TEXT...]`: classifies texts with a trained model.

#include "program_main.h"
#include "text_source.h"

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/text_predictor.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

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

/// Prints predictions.
class Printer {
 public:
  /// @param text_keys two for pairs.
  Printer(
      const PredictArguments& arguments,
      const zoo::TextPredictor& predictor,
      std::vector<std::string> text_keys)
      : arguments_(arguments),
        predictor_(predictor),
        text_keys_(std::move(text_keys)) {}

  void print(const std::vector<zoo::TextPair>& texts) const {
    const auto values = predictor_.predict(texts, are_pairs());
    for (size_t row = 0; row < texts.size(); ++row) {
      const std::string line = arguments_.as_json
                                   ? json_line(texts[row], values[row])
                                   : text_line(texts[row], values[row]);
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
  bool predicts_numbers() const {
    return predictor_.labels() == zoo::HeadLabels::kNumbers;
  }
  bool has_several_labels() const {
    return predictor_.labels() == zoo::HeadLabels::kClasses;
  }

  std::string json_line(
      const zoo::TextPair& text,
      const std::vector<double>& values) const {
    nlohmann::ordered_json json{{text_keys_.front(), text.text}};
    if (are_pairs()) {
      json[text_keys_.back()] = text.second;
    }
    if (predicts_numbers()) {
      json["value"] = values.size() == 1 ? nlohmann::ordered_json(values[0])
                                         : nlohmann::ordered_json(values);
    } else {
      nlohmann::ordered_json probabilities;
      nlohmann::ordered_json likely = nlohmann::ordered_json::array();
      for (size_t i = 0; i < values.size(); ++i) {
        probabilities[predictor_.classes()[i]] = values[i];
        if (values[i] >= kLikely) {
          likely.push_back(predictor_.classes()[i]);
        }
      }
      if (has_several_labels()) {
        json["labels"] = likely;
      } else {
        const size_t best = ranked(values).front();
        json["label"] = predictor_.classes()[best];
        json["probability"] = values[best];
      }
      json["probabilities"] = probabilities;
    }
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string text_line(
      const zoo::TextPair& text,
      const std::vector<double>& values) const {
    std::string line;
    const auto add =
        [&](const std::string& name, const char* format, double x) {
          std::array<char, 64> number{};
          std::snprintf(number.data(), number.size(), format, x);
          line += (line.empty() ? "" : ", ") + name + number.data();
        };
    if (predicts_numbers()) {
      for (const double value : values) {
        add("", "%.4f", value);
      }
    } else {
      size_t shown = 0;
      for (const size_t i : ranked(values)) {
        if (has_several_labels() ? values[i] >= kLikely
                                 : shown++ < arguments_.top) {
          add(predictor_.classes()[i] + " ", "%.1f %%", 100 * values[i]);
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
  const zoo::TextPredictor& predictor_;
  std::vector<std::string> text_keys_;
};

void predict(const PredictArguments& arguments) {
  check_one_process("predict");
  TESSERA_CHECK(
      arguments.text_keys.size() <= 2,
      "--text-key is given {} times; give it once, or twice for pairs of texts",
      arguments.text_keys.size());
  const zoo::TextPredictor predictor(
      arguments.model, arguments.max_length, init().device());
  const auto keys =
      arguments.text_keys.empty() ? predictor.text_keys() : arguments.text_keys;
  const Printer printer(arguments, predictor, keys);
  TextSource source(arguments.texts, arguments.input, keys);
  const auto count = static_cast<size_t>(arguments.batch_size);
  for (auto texts = source.next(count); !texts.empty();
       texts = source.next(count)) {
    printer.print(texts);
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
      "File of one text per line (of pairs: two, separated by a tab), of JSON "
      "objects, or a table (.csv, .tsv)");
  app.add_option(
         "--text-key",
         arguments.text_keys,
         "Key of the text in JSON objects and tables; twice for pairs; default: data.text_key "
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

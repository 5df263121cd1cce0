// SPDX-License-Identifier: Apache-2.0
#include "predicted_lines.h"

#include "tessera/runtime/core/error.h"
#include "tessera/tasks/answer_files.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>

namespace tessera::tools {

namespace {

using nlohmann::ordered_json;

std::string dumped(const ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Line breaks and tabs as spaces.
std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(),
      text.end(),
      [](char c) { return c == '\n' || c == '\t' || c == '\r'; },
      ' ');
  return text;
}

/// Classes from the most likely one.
std::vector<size_t> ranked(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return values[a] > values[b];
  });
  return order;
}

/// Adds one to a list.
void add_to(
    std::string& list,
    const std::string& name,
    const char* format,
    double x) {
  std::array<char, 64> number{};
  std::snprintf(number.data(), number.size(), format, x);
  list += (list.empty() ? "" : ", ") + name + number.data();
}

void add_share(std::string& list, const std::string& name, double share) {
  add_to(list, name + " ", "%.1f %%", 100 * share);
}

} // namespace

std::string ClassLines::line(
    const ordered_json& of,
    const std::vector<double>& values) const {
  if (options_.as_json) {
    ordered_json json = of;
    add_json(json, values);
    return dumped(json);
  }
  std::string shown;
  for (const auto& [key, value] : of.items()) {
    shown += (shown.empty() ? "" : " | ");
    shown += value.is_string() ? value.get<std::string>() : dumped(value);
  }
  return text(values) + "\t" + on_one_line(shown);
}

void ClassLines::add_json(ordered_json& json, const std::vector<double>& values)
    const {
  const auto put = [&json](const char* key, ordered_json value) {
    TESSERA_CHECK(
        !json.contains(key),
        "--json: '{}' is what is predicted, and a key of the texts as well; give the texts another name",
        key);
    json[key] = std::move(value);
  };
  if (labels_.kind == zoo::HeadLabels::kNumbers) {
    put("value",
        values.size() == 1 ? ordered_json(values[0]) : ordered_json(values));
    return;
  }
  ordered_json probabilities;
  ordered_json likely = ordered_json::array();
  for (size_t i = 0; i < values.size(); ++i) {
    probabilities[labels_.names[i]] = values[i];
    if (values[i] >= tasks::kLikelyClass) {
      likely.push_back(labels_.names[i]);
    }
  }
  if (labels_.kind == zoo::HeadLabels::kClasses) {
    put("labels", likely);
  } else {
    const size_t best = ranked(values).front();
    put("label", labels_.names[best]);
    put("probability", values[best]);
  }
  put("probabilities", probabilities);
}

std::string ClassLines::text(const std::vector<double>& values) const {
  std::string line;
  if (labels_.kind == zoo::HeadLabels::kNumbers) {
    for (const double value : values) {
      add_to(line, "", "%.4f", value);
    }
    return line;
  }
  size_t shown = 0;
  for (const size_t i : ranked(values)) {
    if (labels_.kind == zoo::HeadLabels::kClasses
            ? values[i] >= tasks::kLikelyClass
            : shown++ < options_.top) {
      add_share(line, labels_.names[i], values[i]);
    }
  }
  return line.empty() ? "no label" : line;
}

std::string AnswerLines::line(const tasks::PredictedQuestion& predicted) const {
  const tasks::AnsweredQuestion& question = predicted.question;
  const tasks::AnswerPrediction& prediction = predicted.prediction;
  if (!options_.as_json) {
    std::string line;
    auto shown = tasks::ranked_answers(prediction);
    // The threshold of no answer may put another one first.
    std::stable_partition(
        shown.begin(), shown.end(), [&](const tasks::PredictedAnswer& one) {
          return one.text == prediction.answer();
        });
    shown.resize(std::min(shown.size(), options_.top));
    for (const tasks::PredictedAnswer& one : shown) {
      add_share(
          line,
          one.text.empty() ? "no answer" : on_one_line(one.text),
          one.probability);
    }
    return line + "\t" + on_one_line(question.question);
  }
  const auto characters = [&](uint32_t byte) {
    return text::count_code_points(
        std::string_view(question.context).substr(0, byte));
  };
  const auto shown = [&](const tasks::PredictedAnswer& one) {
    return ordered_json{
        {"answer", one.text},
        {"probability", one.probability},
        {"score", one.score},
        {"start", characters(one.bytes.begin)},
        {"end", characters(one.bytes.end)}};
  };
  ordered_json json{{"id", question.id}, {"question", question.question}};
  if (prediction.is_answered) {
    json.update(shown(prediction.best.front()));
  } else {
    json["answer"] = "";
    json["probability"] = prediction.no_answer_probability;
    json["score"] = prediction.no_answer_score;
    json["start"] = nullptr;
    json["end"] = nullptr;
  }
  json["null_score"] = prediction.no_answer_score;
  json["null_probability"] = prediction.no_answer_probability;
  json["n_best"] = ordered_json::array();
  for (const tasks::PredictedAnswer& one : prediction.best) {
    json["n_best"].push_back(shown(one));
  }
  return dumped(json);
}

} // namespace tessera::tools

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classification_data.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/zoo/tasks/json_lines.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

using nlohmann::json;

constexpr const char* kKeys = "data.text_key and data.label_key";

/// @param options what names the columns, for messages.
const json& column_of(
    const json& object,
    const std::string& key,
    const std::string& place,
    const char* options) {
  const auto found = object.find(key);
  if (found == object.end()) {
    std::vector<std::string> keys;
    for (const auto& [name, value] : object.items()) {
      keys.push_back(name);
    }
    TESSERA_FAIL(
        "{}: there is no '{}', but {}; name the columns in {}",
        place,
        key,
        keys.empty() ? "an empty object"
                     : "'" + runtime::join_names(keys) + "'",
        options);
  }
  return *found;
}

std::string text_column(
    const json& object,
    const std::string& key,
    const std::string& place,
    const char* options) {
  const json& value = column_of(object, key, place, options);
  TESSERA_CHECK(
      value.is_string(),
      "{}: '{}' is {}; expected a string",
      place,
      key,
      runtime::show_json(value));
  return value.get<std::string>();
}

/// nullopt: no class.
std::optional<LabelKind> kind_of_class(const json& value) {
  return value.is_string()           ? std::optional(LabelKind::kStrings)
         : value.is_number_integer() ? std::optional(LabelKind::kIntegers)
         : value.is_boolean()        ? std::optional(LabelKind::kBooleans)
                                     : std::nullopt;
}

/// A finite number, or a string that is one, as in a converted CSV file.
std::optional<double> number_of(const json& value) {
  double number = 0;
  if (value.is_number()) {
    number = value.get<double>();
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const char* const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, number);
    if (code != std::errc() || stop != end) {
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

/// What to do about a label that is no class.
const char* remedy_for(const json& value) {
  return value.is_number_float()
             ? "; to predict numbers, set model.problem_type=regression"
         : value.is_array()
             ? "; several labels per text need \"task\": \"examples\""
             : "";
}

class Reader {
 public:
  Reader(const TextClassificationColumns& columns, LabelledTexts& result)
      : columns_(columns), result_(result) {}

  void add(const json& object, int64_t line) {
    const std::string place = formatted("{}:{}", result_.path.string(), line);
    if (!result_.texts.empty()) {
      check_is_like_first(object, place);
    }
    LabelledText text = text_in(object, columns_.texts, place, kKeys);
    text.line = line;
    const json& label = column_of(object, columns_.label, place, kKeys);
    if (result_.kind == LabelKind::kNumbers) {
      const auto number = number_of(label);
      TESSERA_CHECK(
          number.has_value(),
          "{}: '{}' is {}; model.problem_type is \"regression\", which predicts numbers",
          place,
          columns_.label,
          runtime::show_json(label));
      text.number = *number;
    } else {
      text.label = class_of(label, place);
    }
    result_.texts.push_back(std::move(text));
  }

 private:
  /// The columns exist, since the first line has them.
  void check_is_like_first(const json& object, const std::string& place) const {
    auto columns = columns_.texts;
    columns.push_back(columns_.label);
    for (const std::string& key : columns) {
      TESSERA_CHECK(
          object.contains(key),
          "{}: there is no '{}', unlike in line {}; add it or remove the line",
          place,
          key,
          result_.texts.front().line);
    }
  }

  std::string class_of(const json& label, const std::string& place) {
    const auto kind = kind_of_class(label);
    TESSERA_CHECK(
        kind.has_value(),
        "{}: '{}' is {}; expected a string, an integer or a boolean{}",
        place,
        columns_.label,
        runtime::show_json(label),
        remedy_for(label));
    if (result_.texts.empty()) {
      result_.kind = *kind;
      first_ = runtime::show_json(label);
    }
    TESSERA_CHECK(
        result_.kind == *kind,
        "{}: '{}' is {}, but {} in line {}; give all labels the same type",
        place,
        columns_.label,
        runtime::show_json(label),
        first_,
        result_.texts.front().line);
    return label.is_string() ? label.get<std::string>() : label.dump();
  }

  const TextClassificationColumns& columns_;
  LabelledTexts& result_;
  std::string first_; ///< the first label, for messages
};

int64_t index_of_label(
    const LabelledTexts& texts,
    const LabelledText& text,
    const std::vector<std::string>& labels) {
  const auto found = std::find(labels.begin(), labels.end(), text.label);
  if (found == labels.end()) {
    const std::string nearest = runtime::nearest_name(text.label, labels);
    TESSERA_FAIL(
        "{}:{}: the label '{}' of the text {} is not among the {} labels of the training data{}",
        texts.path.string(),
        text.line,
        text.label,
        runtime::show_json(text.text),
        labels.size(),
        nearest.empty() ? ": " + runtime::show_json(labels)
                        : "; did you mean '" + nearest + "'?");
  }
  return found - labels.begin();
}

} // namespace

LabelledText text_in(
    const json& object,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* options) {
  LabelledText text;
  text.text = text_column(object, columns.front(), place, options);
  if (columns.size() > 1) {
    text.second = text_column(object, columns.back(), place, options);
  }
  return text;
}

LabelledTexts read_labelled_texts(
    const std::filesystem::path& path,
    const TextClassificationColumns& columns,
    bool numbers) {
  LabelledTexts result;
  result.path = path;
  result.are_pairs = columns.texts.size() > 1;
  if (numbers) {
    result.kind = LabelKind::kNumbers;
  }
  Reader reader(columns, result);
  read_json_lines(path, [&](const json& object, int64_t line) {
    reader.add(object, line);
  });
  TESSERA_CHECK(
      !result.texts.empty(),
      "{}: the file contains no examples. Expected one JSON object per line, like {{\"text\": \"...\", \"label\": \"...\"}}.",
      path.string());
  return result;
}

std::vector<std::string> labels_of(const LabelledTexts& texts) {
  std::set<std::string> distinct;
  for (const LabelledText& text : texts.texts) {
    distinct.insert(text.label);
  }
  std::vector<std::string> labels(distinct.begin(), distinct.end());
  if (texts.kind == LabelKind::kIntegers) {
    std::sort(
        labels.begin(),
        labels.end(),
        [](const std::string& a, const std::string& b) {
          return std::stold(a) < std::stold(b);
        });
  }
  return labels;
}

void warn_about_labels(const LabelledTexts& texts, bool is_heldout) {
  int64_t empty_texts = 0;
  int64_t empty_labels = 0;
  for (const LabelledText& text : texts.texts) {
    constexpr const char* kBlank = " \t\r\n";
    empty_texts +=
        text.text.find_first_not_of(kBlank) == std::string::npos ? 1 : 0;
    empty_labels += text.label.empty() ? 1 : 0;
  }
  const std::string path = texts.path.string();
  if (empty_texts > 0) {
    log_warning(
        "'{}': {} of {} texts are empty",
        path,
        empty_texts,
        texts.texts.size());
  }
  if (texts.kind == LabelKind::kNumbers) {
    return;
  }
  if (empty_labels > 0) {
    log_warning(
        "'{}': {} of {} texts have an empty label, which counts as a class of its own",
        path,
        empty_labels,
        texts.texts.size());
  }
  if (const auto labels = labels_of(texts); labels.size() == 1) {
    log_warning(
        "'{}': all texts have the label '{}', so {}",
        path,
        labels.front(),
        is_heldout ? "the results say nothing about the other labels"
                   : "there is nothing to learn; is data.label_key right?");
  }
}

std::vector<LabelledEncoding> encode_labelled_texts(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const Tokenizer& tokenizer,
    int64_t max_length) {
  std::vector<LabelledEncoding> examples;
  examples.reserve(texts.texts.size());
  EncodeOptions options;
  options.truncation.max_length = max_length;
  for (const LabelledText& text : texts.texts) {
    LabelledEncoding example;
    example.number = text.number;
    if (texts.kind != LabelKind::kNumbers) {
      example.label = index_of_label(texts, text, labels);
    }
    example.encoding =
        texts.are_pairs ? tokenizer.encode_pair(text.text, text.second, options)
                        : tokenizer.encode(text.text, options);
    examples.push_back(std::move(example));
  }
  return examples;
}

int64_t truncated_count(const std::vector<LabelledEncoding>& examples) {
  return std::count_if(
      examples.begin(), examples.end(), [](const LabelledEncoding& example) {
        return example.encoding.is_truncated;
      });
}

double majority_share(const std::vector<LabelledEncoding>& examples) {
  std::map<int64_t, int64_t> counts;
  int64_t most = 0;
  for (const LabelledEncoding& example : examples) {
    most = std::max(most, ++counts[example.label]);
  }
  return static_cast<double>(most) / static_cast<double>(examples.size());
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_classification_data.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"

#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/row_report.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera::tasks {

namespace {

using nlohmann::json;

/// What a template may name of a preset's row besides its keys.
constexpr const char* kFirstText = "first_text";
constexpr const char* kSecondText = "second_text";
constexpr const char* kKeys = "data.text_key and data.label_key";
constexpr const char* kTableKeys =
    "data.text_key and data.label_key, or, of a table without a header, all of them in data.columns";

/// @param options what names the columns, for messages.
const json& column_of(
    const json& object,
    const std::string& key,
    const std::string& place,
    const char* options) {
  const auto found = object.find(key);
  if (found == object.end()) {
    TESSERA_FAIL(
        "{}: there is no '{}', but {}; name the columns in {}",
        place,
        key,
        text::keys_text(object),
        options);
  }
  return *found;
}

/// nullopt: no class.
std::optional<LabelKind> kind_of_class(const json& value) {
  return value.is_string()           ? std::optional(LabelKind::kStrings)
         : value.is_number_integer() ? std::optional(LabelKind::kIntegers)
         : value.is_boolean()        ? std::optional(LabelKind::kBooleans)
                                     : std::nullopt;
}

/// What to do about a label that is no class.
const char* remedy_for(const json& value) {
  return value.is_number_float()
             ? "; to predict numbers, set model.problem_type=regression"
         : value.is_array()
             ? "; for several labels per text, set model.problem_type=multi_label_classification"
             : "";
}

std::string trimmed(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos
             ? ""
             : std::string(text.substr(
                   begin, text.find_last_not_of(kSpace) + 1 - begin));
}

/// The labels in one string; none if it is empty.
std::vector<json> split_labels(
    const std::string& text,
    const std::string& separator) {
  std::vector<json> labels;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end =
        separator.empty() ? text.npos : text.find(separator, begin);
    std::string label =
        trimmed(std::string_view(text).substr(begin, end - begin));
    if (!label.empty()) {
      labels.emplace_back(std::move(label));
    }
    begin = end == text.npos ? text.size() + 1 : end + separator.size();
  }
  return labels;
}

constexpr const char* kSkipsRows = "data.skip_bad_rows=true";

/// @param skips the option that skips such rows.
/// @throws Error on what a row has to say, and does not.
void check_is_not_blank(
    const std::string& text,
    const std::string& key,
    const std::string& place,
    const char* skips) {
  TESSERA_CHECK(
      !trimmed(text).empty(),
      "{}: '{}' is empty; fill it in or remove the row, or skip such rows with {}",
      place,
      key,
      skips);
}

/// A list of two or more values that are 0 or 1, numbers or booleans: perhaps
/// one for each class, whether the text has it.
bool is_indicator_list(const json& label) {
  return label.is_array() && label.size() > 1 &&
         std::all_of(label.begin(), label.end(), [](const json& one) {
           return one.is_boolean() || one == 0 || one == 1;
         });
}

/// Whether such a list can be no list of classes: these are given once, and are
/// no floats.
bool is_only_indicators(const json& list) {
  return std::any_of(
             list.begin(),
             list.end(),
             [](const json& one) { return one.is_number_float(); }) ||
         std::set<json>(list.begin(), list.end()).size() < list.size();
}

bool is_integer(const std::string& text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc() && stop == end;
}

class Reader {
 public:
  Reader(
      const TextClassificationColumns& columns,
      zoo::HeadLabels labels,
      LabelledTexts& result)
      : columns_(columns), labels_(labels), result_(result) {
    result_.are_pairs = columns.texts.size() > 1 && columns.prompt.empty();
    if (!columns.prompt.empty()) {
      prompt_.emplace(columns.prompt);
      const auto keys = prompt_->keys();
      names_second_text_ =
          std::find(keys.begin(), keys.end(), kSecondText) != keys.end();
    }
    if (columns.preset != nullptr) {
      result_.classes = columns.preset->labels;
    }
    result_.have_several_labels = labels == zoo::HeadLabels::kClasses;
    if (labels == zoo::HeadLabels::kNumbers) {
      result_.kind = LabelKind::kNumbers;
    }
  }

  void add_file(const std::filesystem::path& file) {
    first_in_file_.reset();
    const size_t before = result_.texts.size();
    const int64_t skipped = text::for_each_row(
        {file}, rows_of(file), [&](const text::TextRow& row) { add(row); });
    TESSERA_CHECK(
        result_.texts.size() > before,
        "{}: the file contains no examples{}. Expected a table (CSV, TSV), or one JSON object per line, like {{\"text\": \"...\", \"label\": \"...\"}}.",
        file.string(),
        skipped > 0 ? ", only bad rows" : "");
  }

  void finish() {
    finish_indicators();
    if (has_table_ && labels_ != zoo::HeadLabels::kNumbers) {
      // A table does not say of what kind its fields are.
      const auto names = labels_of(result_);
      result_.kind = std::all_of(names.begin(), names.end(), is_integer)
                         ? LabelKind::kIntegers
                         : LabelKind::kStrings;
    }
  }

 private:
  /// Lists of 0 and 1 are one value for each class, as in transformers, where
  /// they can be nothing else.
  /// @throws Error if one list can be nothing else and another is none of
  /// these,
  ///     and if all may be either.
  void finish_indicators() {
    std::vector<LabelledText>& texts = result_.texts;
    if (indicator_texts_.empty()) {
      return;
    }
    const LabelledText& example =
        texts[only_indicators_.value_or(indicator_texts_.front())];
    const size_t classes = example.labels.size();
    size_t next = 0; // in indicator_texts_
    const auto other =
        std::find_if(texts.begin(), texts.end(), [&](const LabelledText& text) {
          const bool is_listed = next < indicator_texts_.size() &&
                                 &text == &texts[indicator_texts_[next]];
          next += is_listed ? 1 : 0;
          return !is_listed || text.labels.size() != classes;
        });
    if (!only_indicators_) {
      TESSERA_CHECK(
          other != texts.end(),
          "{}: '{}' is {} here, and a list of 0 and 1 in all rows: either the labels \"0\" and \"1\", or whether the text has each of {} classes. Write names of labels instead",
          result_.place(example),
          columns_.label,
          runtime::show_json(example.labels),
          classes);
      for (const size_t i : indicator_texts_) {
        std::sort(texts[i].labels.begin(), texts[i].labels.end());
      }
      return;
    }
    if (other != texts.end()) {
      TESSERA_FAIL(
          "{}: '{}' is {}, which is whether the text has each of {} classes, unlike {} in {}; write names of labels, each once, or {} values of 0 and 1 in all rows",
          result_.place(example),
          columns_.label,
          runtime::show_json(example.labels),
          classes,
          runtime::show_json(other->labels),
          result_.place(*other),
          classes);
    }
    for (LabelledText& text : texts) {
      std::vector<std::string> names;
      for (size_t i = 0; i < classes; ++i) {
        if (text.labels[i] == "1" || text.labels[i] == "true") {
          names.push_back(std::to_string(i));
        }
      }
      text.labels = std::move(names);
    }
    for (size_t i = 0; i < classes; ++i) {
      result_.classes.push_back(std::to_string(i));
    }
    result_.kind = LabelKind::kIntegers;
  }

  /// GLUE's tables have no quotes, and CoLA's no header.
  text::TextRowOptions rows_of(const std::filesystem::path& file) const {
    text::TextRowOptions rows = columns_.rows;
    if (columns_.preset != nullptr) {
      rows.quotes = false;
      if (file.extension() == ".tsv") {
        rows.columns = columns_.preset->columns;
      }
    }
    return rows;
  }

  void add(const text::TextRow& row) {
    if (columns_.preset != nullptr) {
      auto texts = columns_.preset->read(*columns_.preset, row);
      if (prompt_) {
        const bool has_groups =
            texts.size() != 1 || !texts.front().group.empty();
        TESSERA_CHECK(
            !has_groups || names_second_text_,
            "{}: {} has several texts that belong together; data.template must have {{{}}}, in which they differ",
            row.place(),
            columns_.preset->name,
            kSecondText);
        for (LabelledText& text : texts) {
          text.text = prompt_->fill(
              row, {{kFirstText, text.text}, {kSecondText, text.second}});
        }
      }
      for (LabelledText& text : texts) {
        text.file = result_.files.size() - 1;
        text.line = row.line;
        result_.texts.push_back(std::move(text));
      }
      return;
    }
    const std::string place = row.place();
    const char* const keys = row.is_of_table ? kTableKeys : kKeys;
    if (first_in_file_) {
      check_is_like_first(row.values, place);
    }
    LabelledText text;
    if (prompt_) {
      text.text = prompt_->fill(row);
    } else {
      text = text_in(row.values, columns_.texts, place, keys);
      check_is_not_blank(text, columns_.texts, place, kSkipsRows);
    }
    text.file = result_.files.size() - 1;
    text.line = row.line;
    const json& label = column_of(row.values, columns_.label, place, keys);
    switch (labels_) {
      case zoo::HeadLabels::kNumbers: {
        const auto number = finite_number(label);
        TESSERA_CHECK(
            number.has_value(),
            "{}: '{}' is {}; expected a number, because model.problem_type is \"regression\": correct or remove the row, or skip such rows with data.skip_bad_rows=true",
            place,
            columns_.label,
            runtime::show_json(label));
        text.number = *number;
        break;
      }
      case zoo::HeadLabels::kClasses:
        text.labels = classes_of(label, row, place);
        break;
      default:
        text.labels = {class_of(label, row, place)};
        break;
    }
    has_table_ = has_table_ || row.is_of_table;
    if (!first_in_file_) {
      first_in_file_ = row.line;
    }
    result_.texts.push_back(std::move(text));
  }

  /// The columns exist, since the first line has them.
  void check_is_like_first(const json& object, const std::string& place) const {
    auto columns = prompt_ ? std::vector<std::string>() : columns_.texts;
    columns.push_back(columns_.label);
    for (const std::string& key : columns) {
      TESSERA_CHECK(
          object.contains(key),
          "{}: there is no '{}', unlike in line {}; add it or remove the line",
          place,
          key,
          *first_in_file_);
    }
  }

  std::vector<std::string> classes_of(
      const json& label,
      const text::TextRow& row,
      const std::string& place) {
    const bool may_be_indicators = is_indicator_list(label);
    if (may_be_indicators && is_only_indicators(label)) {
      std::vector<std::string> values;
      for (const json& one : label) {
        values.emplace_back(one == true || one == 1 ? "1" : "0");
      }
      only_indicators_ = only_indicators_.value_or(result_.texts.size());
      indicator_texts_.push_back(result_.texts.size());
      return values;
    }
    const std::vector<json> each =
        label.is_array() ? label.get<std::vector<json>>()
        : label.is_string()
            ? split_labels(
                  label.get_ref<const std::string&>(), columns_.label_separator)
            : std::vector<json>{label};
    std::set<std::string> names;
    std::vector<std::string> listed;
    check_no_fractions(label, each, place);
    for (const json& one : each) {
      listed.push_back(class_of(one, row, place));
      TESSERA_CHECK(
          names.insert(listed.back()).second,
          "{}: '{}' is {}, which has {} twice; name each label once, or skip such rows with {}",
          place,
          columns_.label,
          runtime::show_json(label),
          runtime::show_json(listed.back()),
          kSkipsRows);
    }
    if (may_be_indicators) { // the order counts until finish_indicators()
      indicator_texts_.push_back(result_.texts.size());
      return listed;
    }
    return {names.begin(), names.end()};
  }

  void check_no_fractions(
      const json& label,
      const std::vector<json>& each,
      const std::string& place) const {
    const auto find = [&](const auto& is_wrong) {
      return std::find_if(each.begin(), each.end(), [&](const json& one) {
        return one.is_number_float() && is_wrong(one);
      });
    };
    auto found = find([](const json& one) { return one != 0 && one != 1; });
    if (found == each.end()) { // 1.0 among names
      found = find([](const json&) { return true; });
    }
    TESSERA_CHECK(
        found == each.end(),
        "{}: '{}' is {}{}; with model.problem_type=multi_label_classification it must be a list of names of classes, or 0 or 1 for each class, without fractions: round them, name the classes, or skip such rows with {}",
        place,
        columns_.label,
        runtime::show_json(label),
        label.is_array() ? ", which has " + runtime::show_json(*found) : "",
        kSkipsRows);
  }

  std::string class_of(
      const json& label,
      const text::TextRow& row,
      const std::string& place) {
    const auto kind = kind_of_class(label);
    TESSERA_CHECK(
        kind.has_value(),
        "{}: '{}' is {}; expected a string, an integer or a boolean{}",
        place,
        columns_.label,
        runtime::show_json(label),
        remedy_for(label));
    if (label.is_string()) {
      check_is_not_blank(
          label.get_ref<const std::string&>(),
          columns_.label,
          place,
          kSkipsRows);
    }
    if (!row.is_of_table) {
      if (first_label_.empty()) {
        result_.kind = *kind;
        first_label_ = runtime::show_json(label);
        first_place_ = row.file == result_.files.front()
                           ? formatted("line {}", row.line)
                           : place;
      }
      TESSERA_CHECK(
          result_.kind == *kind,
          "{}: '{}' is {}, but {} in {}; give all labels the same type",
          place,
          columns_.label,
          runtime::show_json(label),
          first_label_,
          first_place_);
    }
    return label.is_string() ? label.get<std::string>() : label.dump();
  }

  const TextClassificationColumns& columns_;
  zoo::HeadLabels labels_;
  LabelledTexts& result_;
  std::optional<PromptTemplate> prompt_;
  bool names_second_text_ = false; ///< in prompt_
  bool has_table_ = false;
  /// In LabelledTexts::texts, in order: with a list that is_indicator_list().
  std::vector<size_t> indicator_texts_;
  /// The first of them whose list can be nothing else.
  std::optional<size_t> only_indicators_;
  std::optional<int64_t> first_in_file_; ///< line of its first example
  std::string first_label_; ///< in JSON lines, for messages
  std::string first_place_;
};

std::vector<int64_t> indices_of_labels(
    const LabelledTexts& texts,
    const LabelledText& text,
    const std::vector<std::string>& labels) {
  std::vector<int64_t> indices;
  for (const std::string& label : text.labels) {
    const auto found = std::find(labels.begin(), labels.end(), label);
    if (found == labels.end()) {
      const std::string nearest = runtime::nearest_name(label, labels);
      TESSERA_FAIL(
          "{}: the label '{}' of the text {} is not among the {} labels of the training data{}",
          texts.place(text),
          label,
          runtime::show_json(text.text),
          labels.size(),
          nearest.empty() ? ": " + runtime::show_json(labels)
                          : "; did you mean '" + nearest + "'?");
    }
    indices.push_back(found - labels.begin());
  }
  return indices;
}

} // namespace

std::string LabelledTexts::name() const {
  return files.size() == 1
             ? files.front().string()
             : formatted(
                   "{} and {} more", files.front().string(), files.size() - 1);
}

std::string LabelledTexts::place(const LabelledText& text) const {
  return formatted("{}:{}", files.at(text.file).string(), text.line);
}

std::string checked_string(
    const json& value,
    const std::string& key,
    const std::string& place) {
  TESSERA_CHECK(
      value.is_string(),
      "{}: '{}' is {}; expected a string",
      place,
      key,
      runtime::show_json(value));
  return value.get<std::string>();
}

std::optional<double> finite_number(const json& value) {
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

LabelledText text_in(
    const json& object,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* options) {
  LabelledText text;
  const auto column = [&](const std::string& key) {
    return checked_string(column_of(object, key, place, options), key, place);
  };
  text.text = column(columns.front());
  if (columns.size() > 1) {
    text.second = column(columns.back());
  }
  return text;
}

void check_is_not_blank(
    const LabelledText& text,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* skips) {
  check_is_not_blank(text.text, columns.front(), place, skips);
  if (columns.size() > 1) {
    check_is_not_blank(text.second, columns.back(), place, skips);
  }
}

LabelledTexts read_labelled_texts(
    const std::vector<std::filesystem::path>& files,
    const TextClassificationColumns& columns,
    zoo::HeadLabels labels) {
  LabelledTexts result;
  Reader reader(columns, labels, result);
  for (const auto& file : files) {
    result.files.push_back(file);
    reader.add_file(file);
  }
  reader.finish();
  return result;
}

zoo::HeadLabels text_labels_of(const std::string& problem_type) {
  return problem_type == "regression" ? zoo::HeadLabels::kNumbers
         : problem_type == "multi_label_classification"
             ? zoo::HeadLabels::kClasses
             : zoo::HeadLabels::kClass;
}

std::vector<std::string> labels_of(const LabelledTexts& texts) {
  if (!texts.classes.empty()) {
    return texts.classes;
  }
  std::set<std::string> distinct;
  for (const LabelledText& text : texts.texts) {
    distinct.insert(text.labels.begin(), text.labels.end());
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
  const auto empty_texts = std::count_if(
      texts.texts.begin(), texts.texts.end(), [](const LabelledText& text) {
        return trimmed(text.text).empty(); // of a preset
      });
  const std::string path = texts.name();
  if (empty_texts > 0) {
    log_warning(
        "'{}': {} of {} texts {} empty",
        path,
        empty_texts,
        texts.texts.size(),
        empty_texts == 1 ? "is" : "are");
  }
  if (texts.kind == LabelKind::kNumbers) {
    return;
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

std::vector<LabelledEncoding> labelled_examples(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    text::BadRows bad_rows) {
  std::vector<LabelledEncoding> examples;
  examples.reserve(texts.texts.size());
  RowReport report("row", bad_rows);
  for (size_t i = 0; i < texts.texts.size(); ++i) {
    const LabelledText& text = texts.texts[i];
    LabelledEncoding example;
    example.number = text.number;
    example.text = i;
    example.file = text.file;
    example.group = text.group;
    example.candidate = text.candidate;
    example.answers = text.answers;
    if (report.use(
            [&] { example.labels = indices_of_labels(texts, text, labels); })) {
      examples.push_back(std::move(example));
    }
  }
  TESSERA_CHECK(
      !examples.empty(), "'{}': no text has a known label", texts.name());
  report.log_skipped("'" + texts.name() + "' with unknown labels");
  return examples;
}

std::vector<LabelledEncoding> encode_labelled_texts(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const text::Tokenizer& tokenizer,
    int64_t max_length,
    text::BadRows bad_rows) {
  auto examples = labelled_examples(texts, labels, bad_rows);
  text::EncodeOptions options;
  options.truncation.max_length = max_length;
  for (LabelledEncoding& example : examples) {
    const LabelledText& text = texts.texts[example.text];
    example.encoding =
        texts.are_pairs ? tokenizer.encode_pair(text.text, text.second, options)
                        : tokenizer.encode(text.text, options);
  }
  return examples;
}

double majority_share(const std::vector<LabelledEncoding>& examples) {
  std::map<std::vector<int64_t>, int64_t> counts;
  int64_t most = 0;
  for (const LabelledEncoding& example : examples) {
    most = std::max(most, ++counts[example.labels]);
  }
  return static_cast<double>(most) / static_cast<double>(examples.size());
}

} // namespace tessera::tasks

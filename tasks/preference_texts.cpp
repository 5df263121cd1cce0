// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_texts.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/tasks/row_report.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/text/rows/file_patterns.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// true and false, also as numbers and as the texts of tables.
std::optional<bool> truth_of(const json& value) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  for (const bool truth : {false, true}) {
    const json number = truth ? 1 : 0;
    if (value == number || value == number.dump() ||
        value == (truth ? "true" : "false") ||
        value == (truth ? "True" : "False")) {
      return truth;
    }
  }
  return std::nullopt;
}

/// A list of messages; a text is what the assistant says.
ordered_json messages_in(const ordered_json& value) {
  return value.is_array() ? value
                          : ordered_json::array(
                                {{{"role", "assistant"}, {"content", value}}});
}

size_t common_beginning(const ordered_json& a, const ordered_json& b) {
  size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a[count] == b[count]) {
    ++count;
  }
  return count;
}

} // namespace

PreferenceEncoder::PreferenceEncoder(
    const SupervisedEncoder& texts,
    SupervisedOptions options,
    PreferenceKeys keys)
    : texts_(texts), options_(std::move(options)), keys_(std::move(keys)) {}

SupervisedText PreferenceEncoder::continued(
    const text::TextRow& row,
    const std::string& key) const {
  text::TextRow completed = row;
  completed.values[options_.completion] = row.values.at(key);
  if (keys_.takes_whole_texts && options_.prompt_template.empty() &&
      !row.values.contains(keys_.prompt)) {
    completed.values[options_.prompt] = "";
  }
  return texts_.encode(completed);
}

SupervisedText PreferenceEncoder::conversation(
    const text::TextRow& row,
    const ordered_json& messages,
    size_t shared,
    const std::string& key) const {
  const auto given = row.ordered_values();
  ordered_json values{{options_.messages, messages}};
  if (const auto tools = given.find("tools"); tools != given.end()) {
    values["tools"] = *tools;
  }
  text::TextRow completed{
      .values = nlohmann::json(values),
      .file = row.file,
      .line = row.line,
      .text = values.dump()};
  SupervisedText text = texts_.encode(completed);
  // What the assistant says in the prompt is not the answer.
  const auto said = std::count_if(
      messages.begin(),
      messages.begin() + static_cast<std::ptrdiff_t>(shared),
      [](const ordered_json& message) {
        return message.is_object() &&
               message.value("role", "") == "assistant" &&
               text::is_learned(message);
      });
  const auto count = static_cast<std::ptrdiff_t>(text.answers.size());
  text.answers.erase(
      text.answers.begin(), text.answers.begin() + std::min(said, count));
  TESSERA_CHECK(
      !text.answers.empty(),
      "{}: '{}' has no answer of the role assistant after the prompt within the first {} tokens ({})",
      row.place(),
      key,
      text.tokens.size(),
      texts_.limit());
  return text;
}

PreferencePair PreferenceEncoder::conversations(
    const text::TextRow& row) const {
  TESSERA_CHECK(
      !row.is_of_table,
      "{}: '{}' is a list of messages, which a table cannot hold; write JSON lines",
      row.place(),
      keys_.chosen);
  // Templates show the keys in their order.
  const auto values = row.ordered_values();
  ordered_json chosen = messages_in(values.at(keys_.chosen));
  ordered_json rejected = messages_in(values.at(keys_.rejected));
  const auto prompt = values.find(keys_.prompt);
  size_t shared = 0;
  if (prompt != values.end()) {
    TESSERA_CHECK(
        prompt->is_array(),
        "{}: '{}' is a list of messages, but '{}' is {}; both must be lists, or both texts",
        row.place(),
        keys_.chosen,
        keys_.prompt,
        runtime::show_json(nlohmann::json(*prompt)));
    shared = prompt->size();
    for (ordered_json* answer : {&chosen, &rejected}) {
      ordered_json full = *prompt;
      full.insert(full.end(), answer->begin(), answer->end());
      *answer = std::move(full);
    }
  } else {
    shared = common_beginning(chosen, rejected);
  }
  return {
      conversation(row, chosen, shared, keys_.chosen),
      conversation(row, rejected, shared, keys_.rejected)};
}

PreferencePair PreferenceEncoder::encode(const text::TextRow& row) const {
  PreferencePair pair = answers(row);
  if (const auto margin = row.values.find(keys_.margin);
      !keys_.margin.empty() && margin != row.values.end()) {
    pair.margin = finite_number(*margin);
    TESSERA_CHECK(
        pair.margin.has_value(),
        "{}: '{}' is {}; it is how much better the better answer is, a number: correct or remove it, or name another key in data.margin_key",
        row.place(),
        keys_.margin,
        runtime::show_json(*margin));
  }
  return pair;
}

PreferencePair PreferenceEncoder::answers(const text::TextRow& row) const {
  for (const std::string& key : {keys_.chosen, keys_.rejected}) {
    TESSERA_CHECK(
        row.values.contains(key),
        "{}: there is no '{}'; name the keys of the rows in data.prompt_key, data.chosen_key and data.rejected_key",
        row.place(),
        key);
    TESSERA_CHECK(
        row.values[key].is_string() || row.values[key].is_array(),
        "{}: '{}' is {}; it must be a text or a list of messages",
        row.place(),
        key,
        runtime::show_json(row.values[key]));
  }
  const auto prompt = row.values.find(keys_.prompt);
  const bool is_chat = row.values[keys_.chosen].is_array() ||
                       row.values[keys_.rejected].is_array() ||
                       (prompt != row.values.end() && prompt->is_array());
  if (is_chat) {
    return conversations(row);
  }
  TESSERA_CHECK(
      prompt != row.values.end() || !options_.prompt_template.empty() ||
          keys_.takes_whole_texts,
      "{}: '{}' and '{}' are texts, and there is no '{}', the prompt that they answer; name its key in data.prompt_key, or fill it in with data.template. Whole conversations must be lists of messages",
      row.place(),
      keys_.chosen,
      keys_.rejected,
      keys_.prompt);
  for (const std::string& key : {keys_.chosen, keys_.rejected}) {
    TESSERA_CHECK(
        !is_blank(row.values[key].get_ref<const std::string&>()),
        "{}: '{}' is empty{}; there is nothing to compare, leave out the row, or all such rows with data.skip_bad_rows=true",
        row.place(),
        key,
        row.values[key] == "" ? "" : " (spaces alone)");
  }
  return {continued(row, keys_.chosen), continued(row, keys_.rejected)};
}

std::vector<PreferencePair> PreferenceEncoder::read(
    const std::vector<std::string>& files) const {
  std::vector<PreferencePair> pairs;
  for (const auto& file : text::matching_files(files)) {
    const size_t before = pairs.size();
    RowReport report("row");
    text::for_each_row({file}, options_.rows, [&](const text::TextRow& row) {
      PreferencePair pair = encode(row);
      TESSERA_CHECK(
          pairs.empty() ||
              pair.margin.has_value() == pairs.front().margin.has_value(),
          "{}: there is {} '{}', but the first row has {}; all rows need one, or none",
          row.place(),
          pair.margin ? "a" : "no",
          keys_.margin,
          pair.margin ? "none" : "one");
      report.add(pair.chosen.is_truncated || pair.rejected.is_truncated);
      pairs.push_back(std::move(pair));
    });
    TESSERA_CHECK(
        pairs.size() > before,
        "'{}' has no rows that can be used",
        file.string());
    report.log_truncated(file.string(), texts_.limit(), texts_.max_length());
  }
  return pairs;
}

SupervisedText PreferenceEncoder::answer(
    const text::TextRow& row,
    const std::string& key) const {
  const auto prompt = row.values.find(keys_.prompt);
  TESSERA_CHECK(
      prompt != row.values.end() || !options_.prompt_template.empty(),
      "{}: there is no '{}', the prompt that '{}' answers; name its key in data.prompt_key",
      row.place(),
      keys_.prompt,
      key);
  const bool is_chat = row.values.at(key).is_array() ||
                       (prompt != row.values.end() && prompt->is_array());
  if (!is_chat) {
    return continued(row, key);
  }
  TESSERA_CHECK(
      !row.is_of_table && prompt != row.values.end() && prompt->is_array(),
      "{}: of '{}' and '{}' one is a list of messages; '{}' must be one, and '{}' one or a text",
      row.place(),
      keys_.prompt,
      key,
      keys_.prompt,
      key);
  const auto values = row.ordered_values(); // the keys in order
  ordered_json full = values.at(keys_.prompt);
  const size_t shared = full.size();
  const ordered_json said = messages_in(values.at(key));
  full.insert(full.end(), said.begin(), said.end());
  return conversation(row, full, shared, key);
}

std::vector<JudgedText> PreferenceEncoder::encode_judged(
    const text::TextRow& row) const {
  const json& values = row.values;
  if (!values.contains(keys_.label) && values.contains(keys_.chosen) &&
      values.contains(keys_.rejected)) {
    PreferencePair pair = encode(row);
    return {{std::move(pair.chosen), true}, {std::move(pair.rejected), false}};
  }
  for (const std::string& key : {keys_.completion, keys_.label}) {
    TESSERA_CHECK(
        values.contains(key),
        "{}: there is no '{}'; name the keys of the rows in data.prompt_key, data.completion_key and data.label_key",
        row.place(),
        key);
  }
  const json& completion = values[keys_.completion];
  TESSERA_CHECK(
      completion.is_string() || completion.is_array(),
      "{}: '{}' is {}; it must be a text or a list of messages",
      row.place(),
      keys_.completion,
      runtime::show_json(completion));
  const auto is_good = truth_of(values[keys_.label]);
  TESSERA_CHECK(
      is_good.has_value(),
      "{}: '{}' is {}; it must be true for a good answer, or false",
      row.place(),
      keys_.label,
      runtime::show_json(values[keys_.label]));
  return {{answer(row, keys_.completion), *is_good}};
}

std::vector<JudgedText> PreferenceEncoder::read_judged(
    const std::vector<std::string>& files) const {
  std::vector<JudgedText> texts;
  for (const auto& file : text::matching_files(files)) {
    const size_t before = texts.size();
    RowReport report("row");
    text::for_each_row({file}, options_.rows, [&](const text::TextRow& row) {
      for (JudgedText& one : encode_judged(row)) {
        report.add(one.text.is_truncated);
        texts.push_back(std::move(one));
      }
    });
    TESSERA_CHECK(
        texts.size() > before,
        "'{}' has no rows that can be used",
        file.string());
    report.log_truncated(file.string(), texts_.limit(), texts_.max_length());
  }
  return texts;
}

} // namespace tessera::tasks

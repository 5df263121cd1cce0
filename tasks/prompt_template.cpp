// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/prompt_template.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/zoo/generation/blanks.h"

#include <algorithm>
#include <set>

namespace tessera::tasks {

namespace {

size_t count_of(std::string_view mark, std::string_view text) {
  size_t count = 0;
  for (size_t at = text.find(mark); at != text.npos;
       at = text.find(mark, at + mark.size())) {
    ++count;
  }
  return count;
}

void check_has_no_blank(
    const std::string& value,
    const std::string& key,
    const text::TextRow& row) {
  for (const std::string_view mark : zoo::kBlankMarks) {
    TESSERA_CHECK(
        value.find(mark) == std::string::npos,
        "{}: '{}' has {}, which data.template has where the label goes; remove it from the text",
        row.place(),
        key,
        mark);
  }
}

} // namespace

PromptTemplate::PromptTemplate(std::string_view text, std::string_view place)
    : has_blank_(
          place == kLabelPlace && count_of(kBlankPlace, text) == 1 &&
          count_of(place, text) == 0) {
  TESSERA_CHECK(
      has_blank_ || (text.ends_with(place) && count_of(place, text) == 1),
      "data.template is \"{}\"; it must end with {}, where what the model writes goes, and have it nowhere else{}",
      text,
      place,
      place == kLabelPlace
          ? ", or for a model that fills blanks have one [MASK] in its place, anywhere"
          : "");
  if (!has_blank_) {
    text.remove_suffix(place.size());
    const size_t end = text.find_last_not_of(' ') + 1;
    separator_ = text.substr(end);
    text = text.substr(0, end);
  }
  std::string key;
  for (;;) {
    const size_t open = text.find('{');
    parts_.emplace_back(key, text.substr(0, open));
    if (open == text.npos) {
      break;
    }
    const size_t close = text.find('}', open);
    TESSERA_CHECK(
        close != text.npos,
        "data.template: a brace is not closed after \"{}\"",
        text.substr(open));
    key = text.substr(open + 1, close - open - 1);
    text.remove_prefix(close + 1);
  }
}

std::string PromptTemplate::fill(
    const text::TextRow& row,
    const std::map<std::string, std::string>& more) const {
  std::string prompt;
  for (const auto& [key, after] : parts_) {
    if (&key != &parts_.front().first) {
      const auto other = more.find(key);
      if (other != more.end() && !row.values.contains(key)) {
        if (has_blank_) {
          check_has_no_blank(other->second, key, row);
        }
        prompt += other->second + after;
        continue;
      }
      const auto found = row.values.find(key);
      TESSERA_CHECK(
          found != row.values.end(),
          "{}: there is no '{}', which data.template names",
          row.place(),
          key);
      TESSERA_CHECK(
          found->is_string() || found->is_number() || found->is_boolean(),
          "{}: '{}' is {}; data.template needs a text",
          row.place(),
          key,
          runtime::show_json(*found));
      const std::string value =
          found->is_string() ? found->get<std::string>() : found->dump();
      if (has_blank_) {
        check_has_no_blank(value, key, row);
      }
      prompt += value;
    }
    prompt += after;
  }
  return prompt;
}

std::vector<std::string> PromptTemplate::keys() const {
  std::vector<std::string> keys;
  for (size_t i = 1; i < parts_.size(); ++i) {
    const std::string& key = parts_[i].first;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      keys.push_back(key);
    }
  }
  return keys;
}

std::vector<std::string> verbalizers_of(
    const std::vector<std::string>& labels,
    const std::vector<std::string>& given) {
  std::vector<std::string> words = labels;
  for (const std::string& one : given) {
    const size_t equals = one.find('=');
    TESSERA_CHECK(
        equals != std::string::npos && equals + 1 < one.size(),
        "data.verbalizers has \"{}\"; expected LABEL=WORDS",
        one);
    const auto found =
        std::find(labels.begin(), labels.end(), one.substr(0, equals));
    TESSERA_CHECK(
        found != labels.end(),
        "data.verbalizers has \"{}\", but the labels are '{}'",
        one,
        runtime::join_names(labels));
    words[static_cast<size_t>(found - labels.begin())] = one.substr(equals + 1);
  }
  TESSERA_CHECK(
      std::set<std::string>(words.begin(), words.end()).size() == words.size(),
      "data.verbalizers: two labels have the same words; they are '{}'",
      runtime::join_names(words));
  return words;
}

} // namespace tessera::tasks

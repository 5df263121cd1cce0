// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_presets.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tessera::tasks {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kClassProblem = "single_label_classification";

[[noreturn]] void fail_row(
    const TextPreset& preset,
    const text::TextRow& row,
    const std::string& problem) {
  TESSERA_FAIL(
      "{}: {}; is it a file of data.preset, {}?",
      row.place(),
      problem,
      preset.name);
}

const json& member_of(
    const TextPreset& preset,
    const text::TextRow& row,
    const json& object,
    const std::string& key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) {
    fail_row(preset, row, formatted("there is no '{}'", key));
  }
  return *found;
}

std::string string_of(
    const TextPreset& preset,
    const text::TextRow& row,
    const json& object,
    const std::string& key) {
  const json& value = member_of(preset, row, object, key);
  if (!value.is_string()) {
    fail_row(
        preset,
        row,
        formatted("'{}' is {}, not a string", key, runtime::show_json(value)));
  }
  return value.get<std::string>();
}

int64_t integer_of(
    const TextPreset& preset,
    const text::TextRow& row,
    const json& object,
    const std::string& key) {
  const json& value = member_of(preset, row, object, key);
  if (!value.is_number_integer() || value.get<int64_t>() < 0) {
    fail_row(
        preset,
        row,
        formatted("'{}' is {}, not a place", key, runtime::show_json(value)));
  }
  return value.get<int64_t>();
}

const std::vector<json>& list_of(
    const TextPreset& preset,
    const text::TextRow& row,
    const json& object,
    const std::string& key) {
  const json& value = member_of(preset, row, object, key);
  if (!value.is_array()) {
    fail_row(
        preset,
        row,
        formatted("'{}' is {}, not a list", key, runtime::show_json(value)));
  }
  return value.get_ref<const std::vector<json>&>();
}

/// As finite_number(), or false and true.
std::optional<double> number_in(const json& value) {
  return value.is_boolean() ? std::optional(value.get<bool>() ? 1.0 : 0.0)
                            : finite_number(value);
}

/// The class of a label: its name, its number, or false and true.
std::string class_in(
    const TextPreset& preset,
    const text::TextRow& row,
    const json& value) {
  const auto& names = preset.labels;
  if (value.is_string()) {
    const auto found =
        std::find(names.begin(), names.end(), value.get<std::string>());
    if (found != names.end()) {
      return *found;
    }
  }
  const auto number = number_in(value);
  if (!number || *number < 0 || *number != std::floor(*number) ||
      *number >= static_cast<double>(names.size())) {
    fail_row(
        preset,
        row,
        formatted(
            "the label is {}; expected one of '{}', or its number from 0",
            runtime::show_json(value),
            runtime::join_names(names)));
  }
  return names[static_cast<size_t>(*number)];
}

const std::string& first_key(
    const TextPreset& preset,
    const text::TextRow& row,
    const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (row.values.contains(key)) {
      return key;
    }
  }
  fail_row(preset, row, formatted("there is no '{}'", keys.front()));
}

void add_label(
    const TextPreset& preset,
    const text::TextRow& row,
    LabelledText& to) {
  const json& label = row.values.at(first_key(preset, row, preset.label_keys));
  if (!preset.labels.empty()) {
    to.labels = {class_in(preset, row, label)};
    return;
  }
  const auto number = number_in(label);
  if (!number) {
    fail_row(
        preset,
        row,
        formatted("the score is {}, no number", runtime::show_json(label)));
  }
  to.number = *number;
}

/// Texts and label by their keys.
std::vector<LabelledText> read_by_keys(
    const TextPreset& preset,
    const text::TextRow& row) {
  const auto found = std::find_if(
      preset.text_keys.begin(),
      preset.text_keys.end(),
      [&](const std::vector<std::string>& keys) {
        return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
          return row.values.contains(key);
        });
      });
  const auto& keys =
      found == preset.text_keys.end() ? preset.text_keys.front() : *found;
  LabelledText text;
  text.text = string_of(preset, row, row.values, keys.front());
  if (keys.size() > 1) {
    text.second = string_of(preset, row, row.values, keys.back());
  }
  add_label(preset, row, text);
  return {std::move(text)};
}

/// The two choices after the premise and the question; the better one counts.
std::vector<LabelledText> read_copa(
    const TextPreset& preset,
    const text::TextRow& row) {
  const std::string premise =
      string_of(preset, row, row.values, "premise") +
      (string_of(preset, row, row.values, "question") == "cause"
           ? " What was the cause of this?"
           : " What happened as a result?");
  const json& label = member_of(preset, row, row.values, "label");
  const auto right = number_in(label);
  if (!right || (*right != 0 && *right != 1)) {
    fail_row(
        preset,
        row,
        formatted(
            "the label is {}; expected 0 or 1", runtime::show_json(label)));
  }
  std::vector<LabelledText> texts(2);
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].text = premise;
    texts[i].second =
        string_of(preset, row, row.values, i == 0 ? "choice1" : "choice2");
    texts[i].labels = {preset.labels[*right == static_cast<double>(i) ? 1 : 0]};
    texts[i].group = formatted("{}", row.line);
  }
  return texts;
}

/// The byte at which the character of this number begins.
size_t byte_of(
    const TextPreset& preset,
    const text::TextRow& row,
    const std::string& text,
    int64_t character) {
  size_t at = 0;
  for (int64_t i = 0; i < character; ++i) {
    if (at >= text.size()) {
      fail_row(
          preset,
          row,
          formatted("there is no character {} in its text", character));
    }
    at += text::utf8_length(text, at);
  }
  return at;
}

/// The text with marks around characters [begin, end).
std::string marked(
    const TextPreset& preset,
    const text::TextRow& row,
    const std::string& text,
    int64_t begin,
    int64_t end) {
  const size_t from = byte_of(preset, row, text, begin);
  const size_t to = byte_of(preset, row, text, end);
  if (to < from) {
    fail_row(preset, row, formatted("a word ends at {}", end));
  }
  return text.substr(0, from) + "* " + text.substr(from, to - from) + " *" +
         text.substr(to);
}

std::vector<LabelledText> read_wic(
    const TextPreset& preset,
    const text::TextRow& row) {
  const auto sentence = [&](const std::string& number) {
    return marked(
        preset,
        row,
        string_of(preset, row, row.values, "sentence" + number),
        integer_of(preset, row, row.values, "start" + number),
        integer_of(preset, row, row.values, "end" + number));
  };
  LabelledText text;
  text.text = sentence("1");
  text.second = sentence("2");
  add_label(preset, row, text);
  return {std::move(text)};
}

/// The noun between `*`, the pronoun between `#`.
std::vector<LabelledText> read_wsc(
    const TextPreset& preset,
    const text::TextRow& row) {
  // SuperGLUE has the spans in an object, Hugging Face beside the text.
  const auto target = row.values.find("target");
  const json& spans =
      target != row.values.end() && target->is_object() ? *target : row.values;
  std::vector<std::string> words(1);
  for (const char c : string_of(preset, row, row.values, "text")) {
    if (c != ' ') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  for (const auto& [number, mark] :
       {std::pair{"span1", "*"}, std::pair{"span2", "#"}}) {
    const auto first = static_cast<size_t>(
        integer_of(preset, row, spans, std::string(number) + "_index"));
    const std::string span =
        string_of(preset, row, spans, std::string(number) + "_text");
    const size_t last =
        first + static_cast<size_t>(std::count(span.begin(), span.end(), ' '));
    if (last >= words.size()) {
      fail_row(preset, row, formatted("there is no word {} in its text", last));
    }
    words[first] = formatted("{} {}", mark, words[first]);
    words[last] = formatted("{} {}", words[last], mark);
  }
  LabelledText text;
  for (const std::string& word : words) {
    text.text += (text.text.empty() ? "" : " ") + word;
  }
  add_label(preset, row, text);
  return {std::move(text)};
}

/// One text for each answer; those of a question belong together.
std::vector<LabelledText> read_multirc(
    const TextPreset& preset,
    const text::TextRow& row) {
  std::vector<LabelledText> texts;
  if (row.values.contains("paragraph")) { // of Hugging Face
    LabelledText text;
    text.text = string_of(preset, row, row.values, "paragraph");
    text.second = string_of(preset, row, row.values, "question") + " " +
                  string_of(preset, row, row.values, "answer");
    const json& index = member_of(preset, row, row.values, "idx");
    text.group = formatted(
        "{} {}",
        integer_of(preset, row, index, "paragraph"),
        integer_of(preset, row, index, "question"));
    add_label(preset, row, text);
    return {std::move(text)};
  }
  const json& passage = member_of(preset, row, row.values, "passage");
  int64_t number = 0;
  for (const json& question : list_of(preset, row, passage, "questions")) {
    for (const json& answer : list_of(preset, row, question, "answers")) {
      LabelledText text;
      text.text = string_of(preset, row, passage, "text");
      text.second = string_of(preset, row, question, "question") + " " +
                    string_of(preset, row, answer, "text");
      text.labels = {
          class_in(preset, row, member_of(preset, row, answer, "label"))};
      text.group = formatted("{} {}", row.line, number);
      texts.push_back(std::move(text));
    }
    ++number;
  }
  return texts;
}

/// One text for each entity, which stands in the query's place for it; the best
/// one of a query is its answer.
std::vector<LabelledText> read_record(
    const TextPreset& preset,
    const text::TextRow& row) {
  std::string passage;
  std::vector<std::string> entities;
  std::vector<std::pair<std::string, std::vector<std::string>>> queries;
  const json& given = member_of(preset, row, row.values, "passage");
  if (given.is_string()) { // of Hugging Face
    passage = given.get<std::string>();
    for (const json& one : list_of(preset, row, row.values, "entities")) {
      entities.push_back(one.is_string() ? one.get<std::string>() : "");
    }
    auto& query = queries.emplace_back();
    query.first = string_of(preset, row, row.values, "query");
    for (const json& one : list_of(preset, row, row.values, "answers")) {
      query.second.push_back(one.is_string() ? one.get<std::string>() : "");
    }
  } else {
    passage = string_of(preset, row, given, "text");
    for (const json& one : list_of(preset, row, given, "entities")) {
      const size_t begin =
          byte_of(preset, row, passage, integer_of(preset, row, one, "start"));
      // its last character
      const size_t end = byte_of(
          preset, row, passage, integer_of(preset, row, one, "end") + 1);
      entities.push_back(passage.substr(begin, end - std::min(begin, end)));
    }
    for (const json& one : list_of(preset, row, row.values, "qas")) {
      auto& query = queries.emplace_back();
      query.first = string_of(preset, row, one, "query");
      for (const json& answer : list_of(preset, row, one, "answers")) {
        query.second.push_back(string_of(preset, row, answer, "text"));
      }
    }
  }
  const auto replaced =
      [](std::string text, std::string_view from, const std::string& to) {
        for (size_t at = text.find(from); at != std::string::npos;
             at = text.find(from, at + to.size())) {
          text.replace(at, from.size(), to);
        }
        return text;
      };
  passage = replaced(passage, "\n@highlight\n", " ");
  std::vector<std::string> distinct;
  for (const std::string& entity : entities) {
    if (std::find(distinct.begin(), distinct.end(), entity) == distinct.end()) {
      distinct.push_back(entity);
    }
  }
  std::vector<LabelledText> texts;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto& [query, answers] = queries[i];
    for (const std::string& entity : distinct) {
      LabelledText text;
      text.text = passage;
      text.second = replaced(query, "@placeholder", entity);
      const bool is_right =
          std::find(answers.begin(), answers.end(), entity) != answers.end();
      text.labels = {preset.labels[is_right ? 1 : 0]};
      text.group = formatted("{} {}", row.line, i);
      text.candidate = entity;
      text.answers = answers;
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

} // namespace

const std::vector<TextPreset>& text_presets() {
  using Keys = std::vector<std::vector<std::string>>;
  const Keys sentences{{"sentence1", "sentence2"}};
  const Keys premises{{"premise", "hypothesis"}, {"sentence1", "sentence2"}};
  const std::vector<std::string> truth{"false", "true"};
  const std::vector<std::string> entails{"entailment", "not_entailment"};
  const std::vector<std::string> accuracy{"accuracy"};
  static const std::vector<TextPreset> presets{
      {.name = "glue/cola",
       .problem_type = kClassProblem,
       .labels = {"unacceptable", "acceptable"},
       .metrics = {"matthews", "accuracy"},
       .text_keys = {{"sentence"}},
       .label_keys = {"label"},
       .read = read_by_keys,
       .columns = {"source", "label", "mark", "sentence"}},
      {.name = "glue/sst2",
       .problem_type = kClassProblem,
       .labels = {"negative", "positive"},
       .metrics = accuracy,
       .text_keys = {{"sentence"}},
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "glue/mrpc",
       .problem_type = kClassProblem,
       .labels = {"not_equivalent", "equivalent"},
       .metrics = {"f1", "accuracy"},
       .text_keys = {{"sentence1", "sentence2"}, {"#1 String", "#2 String"}},
       .label_keys = {"label", "Quality"},
       .read = read_by_keys},
      {.name = "glue/qqp",
       .problem_type = kClassProblem,
       .labels = {"not_duplicate", "duplicate"},
       .metrics = {"f1", "accuracy"},
       .text_keys = {{"question1", "question2"}},
       .label_keys = {"label", "is_duplicate"},
       .read = read_by_keys},
      {.name = "glue/stsb",
       .problem_type = "regression",
       .labels = {},
       .metrics = {"pearson", "spearman"},
       .text_keys = sentences,
       .label_keys = {"label", "score"},
       .read = read_by_keys},
      {.name = "glue/mnli",
       .problem_type = kClassProblem,
       .labels = {"entailment", "neutral", "contradiction"},
       .metrics = accuracy,
       .text_keys = premises,
       .label_keys = {"gold_label", "label"},
       .read = read_by_keys,
       .heldout = {"dev_matched", "dev_mismatched"}},
      {.name = "glue/qnli",
       .problem_type = kClassProblem,
       .labels = entails,
       .metrics = accuracy,
       .text_keys = {{"question", "sentence"}},
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "glue/rte",
       .problem_type = kClassProblem,
       .labels = entails,
       .metrics = accuracy,
       .text_keys = sentences,
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "glue/wnli",
       .problem_type = kClassProblem,
       .labels = {"not_entailment", "entailment"},
       .metrics = accuracy,
       .text_keys = sentences,
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "super_glue/boolq",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = accuracy,
       .text_keys = {{"question", "passage"}},
       .label_keys = {"label", "answer"},
       .read = read_by_keys},
      {.name = "super_glue/cb",
       .problem_type = kClassProblem,
       .labels = {"entailment", "contradiction", "neutral"},
       .metrics = {"accuracy", "f1_macro"},
       .text_keys = premises,
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "super_glue/copa",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = {"choice_accuracy"},
       .text_keys = {{"premise", "choice"}},
       .label_keys = {"label"},
       .read = read_copa},
      {.name = "super_glue/rte",
       .problem_type = kClassProblem,
       .labels = entails,
       .metrics = accuracy,
       .text_keys = premises,
       .label_keys = {"label"},
       .read = read_by_keys},
      {.name = "super_glue/wic",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = accuracy,
       .text_keys = sentences,
       .label_keys = {"label"},
       .read = read_wic},
      {.name = "super_glue/wsc",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = accuracy,
       .text_keys = {{"text"}},
       .label_keys = {"label"},
       .read = read_wsc},
      {.name = "super_glue/multirc",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = {"f1", "group_exact_match"},
       .text_keys = {{"paragraph", "question"}},
       .label_keys = {"label"},
       .read = read_multirc},
      {.name = "super_glue/record",
       .problem_type = kClassProblem,
       .labels = truth,
       .metrics = {"answer_f1", "answer_exact_match"},
       .text_keys = {{"passage", "query"}},
       .label_keys = {"label"},
       .read = read_record}};
  return presets;
}

const TextPreset& text_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const TextPreset& preset : text_presets()) {
    if (preset.name == name) {
      return preset;
    }
    names.push_back(preset.name);
  }
  TESSERA_FAIL(
      "data.preset is \"{}\"; expected one of '{}'",
      name,
      runtime::join_names(names));
}

std::vector<std::string> preset_files(
    const TextPreset& preset,
    const fs::path& folder,
    bool heldout) {
  // The names of one publication, and then those of another.
  std::vector<std::vector<std::string>> publications;
  if (!heldout) {
    publications = {
        {"train.tsv"},
        {"train.jsonl"},
        {"train.json"},
        {"msr_paraphrase_train.txt"}};
  } else {
    auto& tables = publications.emplace_back();
    for (const std::string& name : preset.heldout) {
      tables.push_back(name + ".tsv");
    }
    publications.push_back({"val.jsonl"});
    for (const char* extension : {".jsonl", ".json"}) {
      auto& exported = publications.emplace_back();
      for (const std::string& name : preset.heldout) {
        exported.push_back("validation" + name.substr(3) + extension);
      }
    }
  }
  std::string looked_for;
  for (const auto& names : publications) {
    std::vector<std::string> files;
    for (const std::string& name : names) {
      if (fs::exists(folder / name)) {
        files.push_back((folder / name).string());
      }
    }
    if (files.size() == names.size()) {
      return files;
    }
    looked_for += (looked_for.empty() ? "" : ", ") + names.front();
  }
  TESSERA_FAIL(
      "'{}' has none of the files of {}: {}; name the files in data.{}",
      folder.string(),
      preset.name,
      looked_for,
      heldout ? "heldout" : "train");
}

} // namespace tessera::tasks

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/supervised_presets.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::tasks {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The text of a key of a preset's row or message.
/// @param is_needed else "" stands for an absent key or null.
std::string preset_text(
    const json& object,
    const char* key,
    const std::string& place,
    bool is_needed) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    TESSERA_CHECK(
        !is_needed,
        "{}: there is no '{}', but {}; is it a file of data.preset?",
        place,
        key,
        text::keys_text(object));
    return "";
  }
  TESSERA_CHECK(
      found->is_string(),
      "{}: '{}' is {}; it must be a text",
      place,
      key,
      runtime::show_json(*found));
  return found->get<std::string>();
}

/// As JSON lines have it.
text::TextRow with_messages(
    const text::TextRow& row,
    const std::string& key,
    ordered_json messages) {
  ordered_json values{{key, std::move(messages)}};
  if (const auto tools = row.values.find("tools"); tools != row.values.end()) {
    values["tools"] = *tools;
  }
  text::TextRow made = row;
  made.text = values.dump();
  made.values = json::parse(made.text);
  made.is_of_table = false;
  return made;
}

ordered_json chat_message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

/// Earlier turns, as LLaMA-Factory has them: pairs of what the user and the
/// assistant said.
void add_history(
    const text::TextRow& row,
    bool has_chat_template,
    ordered_json& messages) {
  const auto found = row.values.find("history");
  if (found == row.values.end() || found->is_null() || found->empty()) {
    return;
  }
  const auto is_pair = [](const json& turn) {
    return turn.is_array() && turn.size() == 2 && turn[0].is_string() &&
           turn[1].is_string();
  };
  TESSERA_CHECK(
      found->is_array() && std::all_of(found->begin(), found->end(), is_pair),
      "{}: 'history' is {}; it must be a list of pairs of texts, of the user and the assistant",
      row.place(),
      runtime::show_json(*found));
  TESSERA_CHECK(
      has_chat_template,
      "{}: 'history' has earlier turns, which need a tokenizer with a chat template; leave the key out, or such rows by data.skip_bad_rows=true",
      row.place());
  for (const json& turn : *found) {
    messages.push_back(chat_message("user", turn[0].get<std::string>()));
    messages.push_back(chat_message("assistant", turn[1].get<std::string>()));
  }
}

text::TextRow row_of_alpaca(
    const text::TextRow& row,
    const SupervisedKeys& keys,
    bool has_chat_template) {
  const auto text = [&](const char* key, bool is_needed) {
    return preset_text(row.values, key, row.place(), is_needed);
  };
  const std::string instruction = text("instruction", true);
  const std::string input = text("input", false);
  const std::string output = text("output", true);
  const std::string system = text("system", false);
  auto messages = ordered_json::array();
  if (!system.empty()) {
    messages.push_back(chat_message("system", system));
  }
  add_history(row, has_chat_template, messages);
  if (has_chat_template) {
    messages.push_back(chat_message(
        "user", input.empty() ? instruction : instruction + "\n" + input));
    messages.push_back(chat_message("assistant", output));
    return with_messages(row, keys.messages, std::move(messages));
  }
  // The words of github.com/tatsu-lab/stanford_alpaca.
  std::string prompt = !system.empty() ? system
                       : input.empty()
                           ? "Below is an instruction that describes a task. "
                             "Write a response that appropriately completes "
                             "the request."
                           : "Below is an instruction that describes a task, "
                             "paired with an input that provides further "
                             "context. Write a response that appropriately "
                             "completes the request.";
  prompt += "\n\n### Instruction:\n" + instruction;
  if (!input.empty()) {
    prompt += "\n\n### Input:\n" + input;
  }
  text::TextRow made = row;
  made.values = {
      {keys.prompt, prompt + "\n\n### Response:"}, {keys.completion, output}};
  made.is_of_table = false;
  return made;
}

struct ShareGptRole {
  std::string_view from;
  const char* role;
};
constexpr std::array kShareGptRoles{
    ShareGptRole{"human", "user"},
    ShareGptRole{"user", "user"},
    ShareGptRole{"gpt", "assistant"},
    ShareGptRole{"assistant", "assistant"},
    ShareGptRole{"chatgpt", "assistant"},
    ShareGptRole{"bing", "assistant"},
    ShareGptRole{"bard", "assistant"},
    ShareGptRole{"model", "assistant"},
    ShareGptRole{"system", "system"},
    ShareGptRole{"tool", "tool"},
    ShareGptRole{"observation", "tool"},
};

const char* role_of(const std::string& from, const std::string& place) {
  std::string names;
  for (const ShareGptRole& one : kShareGptRoles) {
    if (one.from == from) {
      return one.role;
    }
    names += (names.empty() ? "" : ", ") + std::string(one.from);
  }
  TESSERA_FAIL(
      "{}: 'from' is {}; data.preset \"sharegpt\" knows {}: rename it, or leave out the row",
      place,
      runtime::show_json(from),
      names);
}

text::TextRow row_of_sharegpt(
    const text::TextRow& row,
    const SupervisedKeys& keys) {
  constexpr const char* kKey = "conversations";
  const auto found = row.values.find(kKey);
  TESSERA_CHECK(
      found != row.values.end() && found->is_array(),
      "{}: there is no list '{}', but {}; is it a file of data.preset \"sharegpt\"?",
      row.place(),
      kKey,
      text::keys_text(row.values));
  auto messages = ordered_json::array();
  const std::string system =
      preset_text(row.values, "system", row.place(), /*is_needed=*/false);
  if (!system.empty()) {
    messages.push_back(chat_message("system", system));
  }
  for (size_t i = 0; i < found->size(); ++i) {
    const json& one = (*found)[i];
    const std::string place = formatted("{}: {}[{}]", row.place(), kKey, i);
    TESSERA_CHECK(
        one.is_object(),
        "{} is {}; expected an object with 'from' and 'value'",
        place,
        runtime::show_json(one));
    ordered_json message = chat_message(
        role_of(preset_text(one, "from", place, true), place),
        preset_text(one, "value", place, true));
    for (const char* key : {"weight", "train"}) { // see is_learned()
      if (one.contains(key)) {
        message[key] = one[key];
      }
    }
    messages.push_back(std::move(message));
  }
  return with_messages(row, keys.messages, std::move(messages));
}

} // namespace

std::vector<std::pair<std::string, std::optional<SupervisedPreset>>>
supervised_presets() {
  return {
      {"none", std::nullopt},
      {"alpaca", SupervisedPreset::kAlpaca},
      {"sharegpt", SupervisedPreset::kShareGpt}};
}

text::TextRow row_of_preset(
    SupervisedPreset preset,
    const text::TextRow& row,
    const SupervisedKeys& keys,
    bool has_chat_template) {
  return preset == SupervisedPreset::kAlpaca
             ? row_of_alpaca(row, keys, has_chat_template)
             : row_of_sharegpt(row, keys);
}

} // namespace tessera::tasks

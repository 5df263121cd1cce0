// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/chat_prompt.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <utility>

namespace tessera::text {

namespace {

const std::string& needed_template(
    const TokenizerSettings& settings,
    const std::string& place) {
  TESSERA_CHECK(
      !settings.chat_template.empty(),
      "'{}' has no chat template: neither chat_template.jinja or chat_template.json, nor 'chat_template' (of several, one named \"default\") in tokenizer_config.json; use a model that was tuned for conversations, or add the template that this one was tuned with as chat_template.jinja",
      place);
  return settings.chat_template;
}

/// @throws Error naming `place`.
void check_messages(
    const nlohmann::ordered_json& messages,
    const std::string& place) {
  bool are_messages = messages.is_array() && !messages.empty();
  for (const auto& message : messages) {
    are_messages = are_messages && message.is_object() &&
                   message.contains("role") && message["role"].is_string();
  }
  TESSERA_CHECK(
      are_messages,
      "{}: 'messages' is {}; it must be a list of objects, the latest last: [{{\"role\": \"user\", \"content\": \"Hi\"}}]",
      place,
      runtime::show_json(nlohmann::json(messages)));
}

/// Without the keys of messages whose value is null, as transformers
/// since 5.24: templates show "None" for them, or test only whether a key is
/// there.
nlohmann::ordered_json without_nulls(const nlohmann::ordered_json& messages) {
  auto kept = nlohmann::ordered_json::array();
  for (const auto& message : messages) {
    auto& copy = kept.emplace_back(nlohmann::ordered_json::object());
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) {
        copy[key] = value;
      }
    }
  }
  return kept;
}

/// The texts of a list of parts, a line for each; nothing if they are no texts.
std::optional<std::string> joined_texts(const nlohmann::ordered_json& parts) {
  std::string text;
  for (const auto& part : parts) {
    if (!part.is_object() || !part.contains("text") ||
        !part["text"].is_string() ||
        (part.contains("type") && part["type"] != "text")) {
      return std::nullopt;
    }
    text += (&part == &parts.front() ? "" : "\n") +
            part["text"].get_ref<const std::string&>();
  }
  return text;
}

/// Keys of messages that stand for one thing.
const std::vector<std::vector<const char*>>& optional_keys() {
  static const std::vector<std::vector<const char*>> keys{
      {"tool_calls"},
      {"function_call"},
      {std::begin(kReasoningKeys), std::end(kReasoningKeys)},
      {"name"}};
  return keys;
}

/// Removes keys from a message.
/// @return the first that had a value; nullptr: none.
const char* take_keys(
    nlohmann::ordered_json& message,
    const std::vector<const char*>& keys) {
  const char* taken = nullptr;
  for (const char* key : keys) {
    const auto found = message.find(key);
    if (found != message.end() && !found->empty() && *found != "") {
      taken = taken == nullptr ? key : taken;
      message.erase(key);
    }
  }
  return taken;
}

/// Whether `mark` is in the text, and not in quotes, as it is in a list that
/// Python or JSON write.
bool has_unquoted(const std::string& text, const std::string& mark) {
  size_t found = text.find(mark);
  if (found == text.npos) {
    return false;
  }
  for (; found != text.npos; found = text.find(mark, found + mark.size())) {
    if (found > 0 && (text[found - 1] == '\'' || text[found - 1] == '"')) {
      return false;
    }
  }
  return true;
}

} // namespace

ChatPrompt::ChatPrompt(
    const TokenizerSettings& settings,
    const std::string& place)
    : place_(place),
      template_(needed_template(settings, place), place + ": chat template") {
  if (!settings.tool_chat_template.empty()) {
    tool_template_.emplace(
        settings.tool_chat_template, place + ": chat template \"tool_use\"");
  }
  options_.add_generation_prompt = true;
  for (const auto& [name, token] : settings.special_tokens) {
    if (name == "bos_token") {
      options_.bos_token = token;
    } else if (name == "eos_token") {
      options_.eos_token = token;
    } else {
      options_.variables[name] = token;
    }
  }
}

std::string ChatPrompt::render(
    const nlohmann::ordered_json& messages,
    const std::string& place,
    const nlohmann::ordered_json& tools) const {
  check_messages(messages, place);
  ChatTemplateOptions options = options_;
  options.tools = tools;
  try {
    return template_for(tools).render(without_nulls(messages), options);
  } catch (const Error& error) {
    TESSERA_FAIL("{}: {}", place, error.what());
  }
}

bool ChatPrompt::reads_lists(
    nlohmann::ordered_json messages,
    const std::vector<size_t>& lists,
    const nlohmann::ordered_json& tools) const {
  std::vector<std::string> marks; // none begins another
  for (const size_t i : lists) {
    auto& parts = messages[i]["content"];
    if (parts.empty()) {
      parts.push_back(nlohmann::ordered_json{{"type", "text"}, {"text", ""}});
    }
    for (auto& part : parts) {
      part["text"] = marks.emplace_back(
          "tesseratext" + std::to_string(marks.size()) + "x");
    }
  }
  ChatTemplateOptions options = options_;
  options.add_generation_prompt = false;
  options.tools = tools;
  try {
    const std::string text =
        template_for(tools).render(without_nulls(messages), options);
    return std::all_of(marks.begin(), marks.end(), [&](const auto& mark) {
      return has_unquoted(text, mark);
    });
  } catch (const Error&) {
    return false; // it takes contents for texts
  }
}

nlohmann::ordered_json ChatPrompt::with_read_contents(
    const nlohmann::ordered_json& messages,
    const std::string& place,
    const nlohmann::ordered_json& tools) const {
  check_messages(messages, place);
  std::vector<size_t> lists;
  std::vector<std::string> texts;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end() || !content->is_array()) {
      continue;
    }
    if (auto text = joined_texts(*content)) {
      lists.push_back(i);
      texts.push_back(std::move(*text));
      continue;
    }
    TESSERA_CHECK(
        messages[i]["role"] == "tool",
        "{}: messages[{}] has the 'content' {}; its parts must be texts, {{\"type\": \"text\", \"text\": \"Hi\"}}: models of language read no others",
        place,
        i,
        runtime::show_json(nlohmann::json(*content)));
  }
  if (lists.empty() || reads_lists(messages, lists, tools)) {
    return messages;
  }
  nlohmann::ordered_json read = messages;
  for (size_t i = 0; i < lists.size(); ++i) {
    read[lists[i]]["content"] = texts[i];
  }
  return read;
}

std::vector<std::string> ChatPrompt::unwritten_keys(
    const nlohmann::ordered_json& messages,
    const std::string& place,
    const nlohmann::ordered_json& tools,
    std::optional<size_t> only) const {
  check_messages(messages, place);
  const ChatTemplate& used = template_for(tools);
  ChatTemplateOptions options = options_;
  options.add_generation_prompt = false;
  options.tools = tools;
  const auto render_with = [&](const nlohmann::ordered_json& given) {
    return used.render(without_nulls(given), options);
  };
  std::optional<std::string> text; // made where it is needed
  const auto is_unwritten = [&](const nlohmann::ordered_json& less,
                                const nlohmann::ordered_json& less_tools) {
    try {
      if (!text) {
        text = render_with(messages);
      }
    } catch (const Error& error) {
      TESSERA_FAIL("{}: {}", place, error.what());
    }
    options.tools = less_tools;
    bool is_same = false;
    try {
      is_same = render_with(less) == *text;
    } catch (const Error&) { // the template needs it
    }
    options.tools = tools;
    return is_same;
  };
  std::vector<std::string> unwritten;
  for (const auto& keys : optional_keys()) {
    nlohmann::ordered_json less = messages;
    const char* name = nullptr;
    for (size_t i = 0; i < less.size(); ++i) {
      if (!only || *only == i) {
        const char* const taken = take_keys(less[i], keys);
        name = name == nullptr ? taken : name;
      }
    }
    if (name != nullptr && is_unwritten(less, tools)) {
      unwritten.emplace_back(name);
    }
  }
  if (!only && !tools.empty() && is_unwritten(messages, nullptr)) {
    unwritten.emplace_back("tools");
  }
  return unwritten;
}

void ChatPrompt::warn_of_unwritten_keys(
    const nlohmann::ordered_json& messages,
    const std::string& place,
    const nlohmann::ordered_json& tools) const {
  if (!is_log_rank_zero()) {
    return;
  }
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> logged;
  for (const std::string& key : unwritten_keys(messages, place, tools)) {
    const std::lock_guard lock(mutex);
    if (logged.emplace(place_, key).second) {
      log_warning(
          "{}: the chat template of '{}' does not write '{}', so that the model sees nothing of it; use a template that does, or write it into 'content' (said of the first such conversation only)",
          place,
          place_,
          key);
    }
  }
}

RenderedChat ChatPrompt::render_with_answers(
    const nlohmann::ordered_json& messages,
    const std::string& place,
    const nlohmann::ordered_json& tools) const {
  check_messages(messages, place);
  ChatTemplateOptions options = options_;
  options.add_generation_prompt = false;
  options.tools = tools;
  try {
    const ChatTemplate& used = template_for(tools);
    const auto given = without_nulls(messages);
    return used.has_generation_blocks()
               ? used.render_with_marked_answers(given, options)
               : used.render_with_compared_answers(given, options);
  } catch (const Error& error) {
    TESSERA_FAIL("{}: {}", place, error.what());
  }
}

} // namespace tessera::text

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/chat_template.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_evaluate.h"
#include "tessera/text/chat/jinja_syntax.h"
#include "tessera/text/chat/jinja_value.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace tessera::text {

namespace {

using nlohmann::ordered_json;

void check_messages(const ordered_json& messages) {
  TESSERA_CHECK(
      messages.is_array(),
      "messages is not an array; give a list of objects with role and content");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    TESSERA_CHECK(
        messages[i].is_object(),
        "messages[{}] is not an object; give one with role and content",
        i);
  }
}

void check_list(const ordered_json& value, const char* name) {
  TESSERA_CHECK(
      value.is_null() || value.is_array(),
      "{} is neither an array nor null; give a list",
      name);
}

/// As transformers: what is thought may stand under several names, of which
/// templates read the first, and those of gpt-oss `thinking`.
ordered_json with_reasoning(const ordered_json& messages) {
  ordered_json result = ordered_json::array();
  for (const ordered_json& message : messages) {
    const ordered_json* thought = nullptr;
    for (const char* key : kReasoningKeys) {
      const auto found = message.find(key);
      if (found != message.end() && !found->is_null()) {
        thought = &*found;
        break;
      }
    }
    if (thought == nullptr) {
      result.push_back(message);
      continue;
    }
    ordered_json named{{"thinking", *thought}};
    for (const auto& item : message.items()) {
      named[item.key()] = item.value();
    }
    named["reasoning_content"] = *thought;
    result.push_back(std::move(named));
  }
  return result;
}

jinja::EvaluationOptions evaluation_options(
    const ordered_json& messages,
    const ChatTemplateOptions& options,
    jinja::Budget& budget) {
  check_messages(messages);
  check_list(options.tools, "tools");
  check_list(options.documents, "documents");
  TESSERA_CHECK(
      options.variables.is_object(),
      "variables is not an object; give names and values");
  TESSERA_CHECK(
      options.max_steps >= 0 && options.max_bytes >= 0,
      "max_steps is {} and max_bytes {}, but neither may be negative",
      options.max_steps,
      options.max_bytes);
  jinja::EvaluationOptions result;
  result.now = options.now;
  auto& variables = result.variables;
  for (const auto& [name, value] : options.variables.items()) {
    variables.insert_or_assign(name, jinja::from_json(value, name, budget));
  }
  const auto set = [&](const char* name, const ordered_json& value) {
    variables.insert_or_assign(name, jinja::from_json(value, name, budget));
  };
  set("messages", with_reasoning(messages));
  set("tools", options.tools);
  set("documents", options.documents);
  set("add_generation_prompt", options.add_generation_prompt);
  if (options.bos_token) {
    set("bos_token", *options.bos_token);
  }
  if (options.eos_token) {
    set("eos_token", *options.eos_token);
  }
  return result;
}

/// The blocks that are to be learned, of one for each answer.
/// @throws tessera::Error if there are not as many blocks as answers, where
///     some of these are not to be learned.
template <typename Blocks>
Blocks learned_blocks(
    const ordered_json& messages,
    Blocks blocks,
    const std::string& place) {
  std::vector<bool> learned;
  for (const ordered_json& message : messages) {
    if (const auto role = message.find("role");
        role != message.end() && *role == "assistant") {
      learned.push_back(is_learned(message));
    }
  }
  if (std::find(learned.begin(), learned.end(), false) == learned.end()) {
    return blocks;
  }
  TESSERA_CHECK(
      blocks.size() == learned.size(),
      "{}: some answers have the weight 0, and the template marks {} {{% generation %}} blocks for {} answers, so that it is not known which are theirs; mark one block for each answer, or leave the weights out",
      place,
      blocks.size(),
      learned.size());
  Blocks kept;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (learned[i]) {
      kept.push_back(blocks[i]);
    }
  }
  return kept;
}

ordered_json first_messages(const ordered_json& messages, std::size_t count) {
  ordered_json result = ordered_json::array();
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(messages[i]);
  }
  return result;
}

ByteRange byte_range(std::size_t begin, std::size_t end) {
  TESSERA_CHECK(
      end <= std::numeric_limits<std::uint32_t>::max(),
      "the text has {} bytes, but must have less than 4 GiB to find answers; split the conversation",
      end);
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto difference = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(difference.first - a.begin());
}

} // namespace

bool is_learned(const ordered_json& message) {
  for (const char* key : {"weight", "train"}) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) {
      continue;
    }
    const bool is_switch = found->is_boolean() ||
                           (found->is_number() && (*found == 0 || *found == 1));
    TESSERA_CHECK(
        is_switch,
        "'{}' of a message is {}; expected 0 or false, if it is not to be learned, or 1 or true",
        key,
        found->dump());
    if (*found == false || *found == 0) {
      return false;
    }
  }
  return true;
}

ChatTemplate::ChatTemplate(std::string_view text, std::string place)
    : place_(std::move(place)),
      program_(std::make_shared<const jinja::Program>(
          jinja::parse_program(text, place_))) {}

std::string ChatTemplate::render(
    const ordered_json& messages,
    const ChatTemplateOptions& options) const {
  jinja::Budget budget(options.max_steps, options.max_bytes);
  return jinja::evaluate_program(
             *program_,
             place_,
             evaluation_options(messages, options, budget),
             budget)
      .text;
}

bool ChatTemplate::has_generation_blocks() const {
  return program_->has_generation;
}

RenderedChat ChatTemplate::render_with_marked_answers(
    const ordered_json& messages,
    const ChatTemplateOptions& options) const {
  TESSERA_CHECK(
      has_generation_blocks(),
      "{}: the template marks no answers by {{% generation %}} blocks; add them, or find answers by comparison",
      place_);
  jinja::Budget budget(options.max_steps, options.max_bytes);
  auto evaluation = evaluation_options(messages, options, budget);
  evaluation.generation_blocks = jinja::GenerationBlocks::kRecorded;
  jinja::Rendering rendering =
      jinja::evaluate_program(*program_, place_, evaluation, budget);
  RenderedChat chat{std::move(rendering.text), {}};
  for (const auto& [begin, end] :
       learned_blocks(messages, std::move(rendering.generated), place_)) {
    chat.answers.push_back(byte_range(begin, end));
  }
  return chat;
}

RenderedChat ChatTemplate::render_with_compared_answers(
    const ordered_json& messages,
    const ChatTemplateOptions& options) const {
  RenderedChat chat{render(messages, options), {}};
  ChatTemplateOptions before = options;
  before.add_generation_prompt = true;
  ChatTemplateOptions after = options;
  after.add_generation_prompt = false;
  const auto check_begins = [&](const std::string& text,
                                const std::string& prefix,
                                std::size_t message,
                                const char* which) {
    TESSERA_CHECK(
        text.starts_with(prefix),
        "{}: the answer messages[{}] cannot be found in the text: {} differs from byte {} on, because the template changes earlier text; add {{% generation %}} blocks to it, or train on one answer per conversation",
        place_,
        message,
        which,
        common_prefix(text, prefix));
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto role = messages[i].find("role");
    if (role == messages[i].end() || *role != "assistant" ||
        !is_learned(messages[i])) {
      continue;
    }
    const std::string prompt = render(first_messages(messages, i), before);
    const std::string answered = render(first_messages(messages, i + 1), after);
    check_begins(answered, prompt, i, "the generation prompt before it");
    check_begins(chat.text, answered, i, "the conversation up to it");
    chat.answers.push_back(byte_range(prompt.size(), answered.size()));
  }
  return chat;
}

} // namespace tessera::text

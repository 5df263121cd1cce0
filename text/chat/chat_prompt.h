// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ChatPrompt` renders conversations to prompts by a tokenizer's own template.

#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera::text {

/// As transformers' apply_chat_template(add_generation_prompt=True): the text
/// is to be encoded without special tokens. Immutable.
class ChatPrompt {
 public:
  /// @param place of the tokenizer, e.g. its folder.
  /// @throws tessera::Error if it has no template, or one that is malformed.
  ChatPrompt(const TokenizerSettings& settings, const std::string& place);

  /// @param messages see ChatTemplate::render(); keys whose value is null are
  ///     as if they were not there.
  /// @param tools that the template sees; null or an array.
  /// @throws tessera::Error naming `place` and the message that is none, or as
  ///     ChatTemplate::render().
  std::string render(
      const nlohmann::ordered_json& messages,
      const std::string& place,
      const nlohmann::ordered_json& tools = nullptr) const;

  /// The whole conversation, with what the assistant says in it: by the
  /// template's generation blocks, else by comparison; see ChatTemplate.
  /// @throws tessera::Error as render().
  RenderedChat render_with_answers(
      const nlohmann::ordered_json& messages,
      const std::string& place,
      const nlohmann::ordered_json& tools = nullptr) const;

  /// The messages with contents that the template reads: of templates that
  /// write lists as they are, or not at all, a content that is a list of texts,
  /// `[{"type": "text", "text": "Hi"}]`, becomes one text, with a line for
  /// each.
  /// @throws tessera::Error naming `place` and a message that has parts which
  ///     are no texts; a tool's may.
  nlohmann::ordered_json with_read_contents(
      const nlohmann::ordered_json& messages,
      const std::string& place,
      const nlohmann::ordered_json& tools = nullptr) const;

  /// Which keys of messages beside role and content (tool_calls, function_call,
  /// name, what was thought), and "tools", the template does not write: without
  /// them the text is the same.
  /// @param only this message, and no tools; nullopt: all.
  /// @throws tessera::Error as render().
  std::vector<std::string> unwritten_keys(
      const nlohmann::ordered_json& messages,
      const std::string& place,
      const nlohmann::ordered_json& tools = nullptr,
      std::optional<size_t> only = {}) const;

  /// Logs a warning with unwritten_keys(), once for each key of a template, on
  /// rank 0.
  void warn_of_unwritten_keys(
      const nlohmann::ordered_json& messages,
      const std::string& place,
      const nlohmann::ordered_json& tools = nullptr) const;

 private:
  /// Whether the template writes all texts of contents that are lists, as they
  /// are.
  bool reads_lists(
      nlohmann::ordered_json messages,
      const std::vector<size_t>& lists,
      const nlohmann::ordered_json& tools) const;

  /// As transformers: of conversations with tools.
  const ChatTemplate& template_for(const nlohmann::ordered_json& tools) const {
    return tools.is_null() || !tool_template_ ? template_ : *tool_template_;
  }

  std::string place_;
  ChatTemplate template_;
  std::optional<ChatTemplate> tool_template_;
  ChatTemplateOptions options_;
};

} // namespace tessera::text

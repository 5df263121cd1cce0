// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ChatTemplate` renders conversations by the Jinja chat template of a Hugging
// Face tokenizer.

#include "tessera/text/tokenizer/aligned_text.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

namespace jinja {
struct Program;
}

/// The names of what a message's author thought before its content.
inline constexpr const char* kReasoningKeys[] = {
    "reasoning_content",
    "thinking",
    "reasoning"};

/// What a template sees beside the messages. JSON keeps the order of its keys,
/// which templates show.
struct ChatTemplateOptions {
  /// Whether the text ends with the beginning of an answer.
  bool add_generation_prompt = false;
  nlohmann::ordered_json tools = nullptr; ///< null or an array
  nlohmann::ordered_json documents = nullptr; ///< null or an array
  std::optional<std::string> bos_token; ///< nothing: undefined
  std::optional<std::string> eos_token; ///< nothing: undefined
  /// Further variables by name, e.g. {"enable_thinking": false}.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  /// The time that strftime_now() shows; nothing: the clock's.
  std::optional<std::time_t> now;
  /// Of statements and expressions evaluated: a template that loops without
  /// end ends with an error.
  std::int64_t max_steps = 10'000'000;
  /// Of the texts and lists that the template makes, temporary ones too.
  std::int64_t max_bytes = std::int64_t{1} << 30;
};

/// Whether what a message says is to be learned, if the assistant says it: not
/// with `"weight": 0`, OpenAI's, or `"train": false`.
/// @throws tessera::Error on other values of these keys than 0, 1, false, true.
bool is_learned(const nlohmann::ordered_json& message);

struct RenderedChat {
  std::string text;
  /// Of the text: what the assistant says, in order, to be trained on; see
  /// is_learned().
  std::vector<ByteRange> answers;
};

/// Renders the same text as transformers'
/// `apply_chat_template(tokenize=False)`: Jinja's immutable sandbox with
/// trim_blocks, lstrip_blocks, break, continue and transformers' own functions
/// and `tojson`. Refused, by name: template inheritance and includes, recursive
/// loops, *args, integers of more than 64 bits, and rarely used filters and
/// methods. Immutable; may be used from several threads at once.
class ChatTemplate {
 public:
  /// @param text of the template, e.g. chat_template in tokenizer_config.json.
  /// @param place of the template, for errors, e.g. its file.
  /// @throws Error "PLACE:LINE:COLUMN: ..." if it is not a template, or uses
  ///     what is not implemented.
  ChatTemplate(std::string_view text, std::string place);

  /// @param messages an array of objects, e.g. {"role": "user", "content":
  ///     "Hi"}; see kReasoningKeys.
  /// @throws Error with the template's message if it refuses the conversation
  ///     by raise_exception(), or if it evaluates what is not implemented or
  ///     exceeds a limit.
  std::string render(
      const nlohmann::ordered_json& messages,
      const ChatTemplateOptions& options = {}) const;

  /// Whether the template marks answers by {% generation %} blocks.
  bool has_generation_blocks() const;

  /// Renders, and finds the answers by the template's generation blocks, as
  /// transformers does for return_assistant_tokens_mask.
  /// @throws Error as render(), and if the template has no such blocks.
  RenderedChat render_with_marked_answers(
      const nlohmann::ordered_json& messages,
      const ChatTemplateOptions& options = {}) const;

  /// Renders, and finds the answers by comparison: that of message i is what
  /// the text of messages 0 to i has beyond the text of messages 0 to i-1 with
  /// a generation prompt. It includes what ends the answer, e.g.
  /// "<|im_end|>\n". Renders twice for each message of role "assistant".
  /// @throws Error as render(), and if one text is not the beginning of the
  ///     next, e.g. because the template removes earlier thoughts.
  RenderedChat render_with_compared_answers(
      const nlohmann::ordered_json& messages,
      const ChatTemplateOptions& options = {}) const;

 private:
  std::string place_;
  std::shared_ptr<const jinja::Program> program_;
};

} // namespace tessera::text

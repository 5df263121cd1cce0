// SPDX-License-Identifier: Apache-2.0
// A chat template of any bytes, which renders a conversation with tools.

#include "fuzz/fuzz_target.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera::fuzz_chat_template {

TESSERA_FUZZ_TARGET(chat_template) {
  static const auto kMessages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Grüße"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "call00001",
      "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}]},
    {"role": "tool", "content": "3.5"},
    {"role": "assistant", "content": "<think>a</think>3.5"}])");
  text::ChatTemplateOptions options;
  options.tools = nlohmann::ordered_json::parse(
      R"([{"function": {"name": "add", "description": "Adds\nthem",
        "parameters": {"properties": {"a": {"type": "number"}}}}}])");
  options.variables = nlohmann::ordered_json::parse(
      R"({"s": "Hello", "l": [3, 1, 2], "i": 7, "d": {"b": 1}, "t": true})");
  options.max_steps = 50'000;
  options.max_bytes = 1 << 22;
  try {
    const text::ChatTemplate chat(input, "template");
    if (chat.has_generation_blocks()) {
      chat.render_with_marked_answers(kMessages, options);
    } else {
      chat.render(kMessages, options);
    }
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_chat_template

// SPDX-License-Identifier: Apache-2.0
#include "chat_session.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>

namespace tessera::tools {

namespace {

nlohmann::ordered_json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

nlohmann::ordered_json beginning(const std::string& system) {
  auto messages = nlohmann::ordered_json::array();
  if (!system.empty()) {
    messages.push_back(message("system", system));
  }
  return messages;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// A line that is not empty.
std::optional<std::string> typed_line(bool is_terminal) {
  for (std::string line;;) {
    if (is_terminal) {
      print("> ");
    }
    if (!std::getline(std::cin, line)) {
      return std::nullopt;
    }
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.find_first_not_of(" \t") != std::string::npos) {
      return line;
    }
  }
}

} // namespace

void hold_chat(
    const zoo::TextGenerator& generator,
    const text::ChatPrompt& chat,
    const std::string& system,
    SharedText& typed,
    bool prints) {
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  if (prints && is_terminal) {
    std::fputs(
        "Type a message and press Enter; /reset begins again, /exit ends.\n",
        stderr);
  }
  nlohmann::ordered_json messages = beginning(system);
  zoo::PromptCache kept;
  int64_t asked = 0;
  while (const auto line =
             typed.next([&] { return typed_line(is_terminal); })) {
    if (*line == "/exit") {
      break;
    }
    if (*line == "/reset") {
      messages = beginning(system);
      continue;
    }
    if (line->starts_with('/')) {
      if (prints) {
        std::fprintf(
            stderr,
            "'%s' is no command; there are /reset and /exit\n",
            line->c_str());
      }
      continue;
    }
    messages.push_back(message("user", *line));
    const auto answers = generator.generate(
        {chat.render(messages, "the conversation")},
        [&](size_t, std::string_view fragment) {
          if (prints) {
            print(fragment);
          }
        },
        &kept,
        asked++);
    if (prints) {
      print("\n");
    }
    messages.push_back(message("assistant", answers.front().text));
  }
}

} // namespace tessera::tools

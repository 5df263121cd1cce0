// SPDX-License-Identifier: Apache-2.0
// render_chats FOLDER FILE: renders conversations, lines of {"messages": ...,
// "tools": ...}, by the chat template of a tokenizer's folder; for
// chats_suite.py. Prints a line for each: {"prompt", "text", "answers"}, where
// null is what the template, or we, refuse.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

namespace {

using Json = nlohmann::ordered_json;

Json rendered(const tessera::text::ChatPrompt& chat, const Json& row) {
  const Json tools = row.value("tools", Json());
  Json result{{"prompt", nullptr}, {"text", nullptr}, {"answers", nullptr}};
  try {
    result["prompt"] = chat.render(row.at("messages"), "row", tools);
  } catch (const tessera::Error& error) {
    result["prompt_error"] = error.what();
  }
  try {
    const auto all = chat.render_with_answers(row.at("messages"), "row", tools);
    result["text"] = all.text;
    result["answers"] = Json::array();
    for (const auto& answer : all.answers) {
      result["answers"].push_back({answer.begin, answer.end});
    }
  } catch (const tessera::Error& error) {
    result["text_error"] = error.what();
  }
  return result;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: render_chats FOLDER FILE\n", stderr);
    return 2;
  }
  try {
    const auto tokenizer = tessera::text::Tokenizer::from_folder(argv[1]);
    const tessera::text::ChatPrompt chat(tokenizer.settings(), argv[1]);
    std::istringstream rows(tessera::runtime::read_text_file(argv[2]));
    for (std::string row; std::getline(rows, row);) {
      std::puts(rendered(chat, Json::parse(row)).dump().c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

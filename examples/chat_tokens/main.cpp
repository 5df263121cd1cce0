// SPDX-License-Identifier: Apache-2.0
// Renders a conversation by a model folder's template and prints its tokens;
// links tessera::text alone, without LibTorch.
//
//   chat_tokens FOLDER "What is a tensor?"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: chat_tokens FOLDER QUESTION\n";
    return 2;
  }
  const auto tokenizer = tessera::text::Tokenizer::from_folder(argv[1]);
  const tessera::text::ChatPrompt chat(tokenizer.settings(), argv[1]);
  const std::string prompt =
      chat.render({{{"role", "user"}, {"content", argv[2]}}}, "the question");
  std::cout << prompt << "\n";
  // The template has written the special tokens.
  for (const int64_t id : tokenizer.ids(prompt)) {
    std::cout << id << " ";
  }
  std::cout << "\n";
} catch (const std::exception& error) {
  std::cerr << "chat_tokens: " << error.what() << "\n";
  return 1;
}

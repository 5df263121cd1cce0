// SPDX-License-Identifier: Apache-2.0
// A tokenizer's files and a text, each of any bytes: vocab.txt,
// tokenizer_config.json, tokenizer.json, added_tokens.json,
// special_tokens_map.json, config.json and the text, with lines "====" between
// them. A file that is empty is left out.

#include "fuzz/fuzz_target.h"
#include "fuzz/tokenizer_checks.h"
#include "support/temporary_folder.h"

#include <fstream>

namespace tessera::fuzz_tokenizer {
namespace {

constexpr std::string_view kBetween = "\n====\n";
constexpr const char* kFiles[] = {
    "vocab.txt",
    "tokenizer_config.json",
    "tokenizer.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "config.json"};

/// Takes what is before the next line between.
std::string_view next_part(std::string_view& rest) {
  const size_t end = rest.find(kBetween);
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(
      end == std::string_view::npos ? rest.size() : end + kBetween.size());
  return part;
}

} // namespace

TESSERA_FUZZ_TARGET(tokenizer) {
  static const TemporaryFolder folder;
  std::string_view rest = input;
  for (const char* const file : kFiles) {
    const std::string_view part = next_part(rest);
    std::filesystem::remove(folder / file);
    if (!part.empty()) {
      std::ofstream(folder / file, std::ios::binary) << part << '\n';
    }
  }
  try {
    use_tokenizer(text::Tokenizer::from_folder(folder.path()), rest);
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_tokenizer

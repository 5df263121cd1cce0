// SPDX-License-Identifier: Apache-2.0
// Sections "normalizer" and "pre_tokenizer" of a tokenizer.json and a text,
// each of any bytes, with lines "====" between them. A section that is empty is
// left out.

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"
#include "tessera/text/tokenizer/utf8.h"

#include <cstdlib>

namespace tessera::fuzz_tokenizer_parts {
namespace {

constexpr std::string_view kBetween = "\n====\n";

/// Takes what is before the next line between.
std::string next_section(std::string_view& rest) {
  const size_t end = rest.find(kBetween);
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(
      end == std::string_view::npos ? rest.size() : end + kBetween.size());
  return std::string(part);
}

void read_and_apply(std::string_view rest) {
  const std::string normalizer = next_section(rest);
  const std::string pre_tokenizer = next_section(rest);
  std::string storage;
  const std::string_view given = text::valid_utf8(rest, storage);
  text::AlignedText text(given, 0, true);
  if (!normalizer.empty()) {
    const auto json = runtime::parse_json(normalizer, "the normalizer");
    text::read_normalizer(runtime::JsonValue(json, "normalizer"))->apply(text);
  }
  if (!pre_tokenizer.empty()) {
    const auto json = runtime::parse_json(pre_tokenizer, "the pre-tokenizer");
    text::read_pre_tokenizer(runtime::JsonValue(json, "pre_tokenizer"))
        ->apply(text);
  }
  uint32_t end = 0;
  for (const text::ByteRange& word : text.words()) {
    const text::ByteRange origin = text.origin(word);
    if (word.begin < end || word.end > text.text().size() ||
        origin.end > given.size()) {
      std::abort(); // words overlap, or are of no text
    }
    end = word.end;
  }
}

} // namespace

TESSERA_FUZZ_TARGET(tokenizer_parts) {
  try {
    read_and_apply(input);
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_tokenizer_parts

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/wordpiece.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <utility>

namespace tessera::text {
namespace {

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
}

} // namespace

struct WordPiece::Work : Scratch {
  std::string candidate;
};

WordPiece::WordPiece(Vocabulary vocabulary, WordPieceOptions options)
    : CachedTokenModel(std::move(vocabulary), {.has_bytes = options.has_bytes}),
      options_(std::move(options)),
      unk_id_(find(options_.unk_token)) {}

std::unique_ptr<CachedTokenModel::Scratch> WordPiece::make_scratch() const {
  return std::make_unique<Work>();
}

bool WordPiece::append_pieces(
    std::string_view word,
    std::string& candidate,
    std::vector<WordToken>& tokens) const {
  for (size_t start = 0; start < word.size();) {
    candidate = start == 0 ? "" : options_.continuing_prefix;
    const size_t prefix_bytes = candidate.size();
    candidate += word.substr(start, vocabulary().longest_token_bytes());
    std::optional<uint32_t> id;
    size_t end = start + candidate.size() - prefix_bytes;
    for (; end > start; --end, candidate.pop_back()) {
      if (end == word.size() || begins_character(word[end])) {
        id = find(candidate);
        if (id) {
          break;
        }
      }
    }
    if (!id) {
      return false;
    }
    tokens.push_back(
        {*id, {static_cast<uint32_t>(start), static_cast<uint32_t>(end)}});
    start = end;
  }
  return true;
}

void WordPiece::divide(
    std::string_view word,
    Scratch& scratch,
    std::vector<WordToken>& tokens) const {
  const size_t first = tokens.size();
  const auto characters = static_cast<int64_t>(count_code_points(word));
  if (characters <= options_.max_characters_per_word &&
      append_pieces(word, static_cast<Work&>(scratch).candidate, tokens)) {
    return;
  }
  tokens.resize(first);
  TESSERA_CHECK(
      unk_id_,
      "the vocabulary of {} tokens has none for {} and lacks the unknown token {}; set 'unk_token' to one of its tokens",
      vocabulary().count(),
      runtime::show_json(std::string(word)),
      runtime::show_json(options_.unk_token));
  tokens.push_back({*unk_id_, {0, static_cast<uint32_t>(word.size())}});
}

} // namespace tessera::text

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/wordpiece.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {
namespace {

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
}

} // namespace

WordPiece::WordPiece(Vocabulary vocabulary, WordPieceOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      unk_id_(vocabulary_.find(options_.unk_token)) {
  TESSERA_CHECK(
      unk_id_ >= 0,
      "the vocabulary of {} tokens lacks the unknown token '{}'; is this vocab.txt one of a BERT model?",
      vocabulary_.size(),
      options_.unk_token);
}

void WordPiece::append(std::string_view word, std::vector<std::int64_t>& ids)
    const {
  const auto characters =
      std::count_if(word.begin(), word.end(), begins_character);
  if (characters > options_.max_characters_per_word) {
    ids.push_back(unk_id_);
    return;
  }
  const std::size_t first_id = ids.size();
  std::string candidate;
  for (std::size_t start = 0; start < word.size();) {
    candidate = start == 0 ? "" : options_.continuing_prefix;
    const std::size_t prefix_bytes = candidate.size();
    candidate += word.substr(start, vocabulary_.longest_token_bytes());
    std::int64_t id = -1;
    while (candidate.size() > prefix_bytes) {
      const std::size_t end = start + candidate.size() - prefix_bytes;
      const bool ends_character =
          end == word.size() || begins_character(word[end]);
      id = ends_character ? vocabulary_.find(candidate) : -1;
      if (id >= 0) {
        start = end;
        break;
      }
      candidate.pop_back();
    }
    if (id < 0) {
      ids.resize(first_id);
      ids.push_back(unk_id_);
      return;
    }
    ids.push_back(id);
  }
}

} // namespace tessera::zoo

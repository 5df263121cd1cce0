// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/word_level.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::text {

WordLevel::WordLevel(
    Vocabulary vocabulary,
    std::string unk_token,
    bool has_bytes)
    : CachedTokenModel(std::move(vocabulary), {.has_bytes = has_bytes}),
      unk_token_(std::move(unk_token)),
      unk_id_(find(unk_token_)) {}

std::unique_ptr<CachedTokenModel::Scratch> WordLevel::make_scratch() const {
  return std::make_unique<Scratch>();
}

void WordLevel::divide(
    std::string_view word,
    Scratch& /*scratch*/,
    std::vector<WordToken>& tokens) const {
  const auto id = find(word);
  TESSERA_CHECK(
      id || unk_id_,
      "the WordLevel vocabulary of {} tokens lacks '{}' and the unknown token '{}'; set 'unk_token' to one of its tokens",
      vocabulary().count(),
      word,
      unk_token_);
  tokens.push_back(
      {id ? *id : *unk_id_, {0, static_cast<uint32_t>(word.size())}});
}

} // namespace tessera::text

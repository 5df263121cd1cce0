// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/vocabulary.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <fstream>

namespace tessera::zoo {

Vocabulary::Vocabulary(
    std::vector<std::pair<std::string, std::int64_t>> tokens,
    const std::string& origin) {
  TESSERA_CHECK(
      !tokens.empty(),
      "{} holds no tokens; fetch the model's folder again",
      origin);
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.second < b.second;
  });
  tokens_.reserve(tokens.size());
  ids_.reserve(tokens.size());
  for (auto& [token, id] : tokens) {
    TESSERA_CHECK(
        id == size(),
        "{}: token '{}' has id {} where {} is next; ids must be 0 .. size - 1, each used once",
        origin,
        token,
        id,
        size());
    TESSERA_CHECK(
        !token.empty(),
        "{}: the token with id {} (line {} of a vocab.txt) is empty; remove the blank line or fetch the model's folder again",
        origin,
        id,
        id + 1);
    const auto [seat, is_new] = ids_.emplace(token, id);
    TESSERA_CHECK(
        is_new,
        "{}: token '{}' appears twice, with ids {} and {} (lines {} and {} of a vocab.txt); remove one of them only together with its row of the word embeddings, or fetch the model's folder again",
        origin,
        token,
        seat->second,
        id,
        seat->second + 1,
        id + 1);
    longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
    tokens_.push_back(std::move(token));
  }
}

Vocabulary Vocabulary::from_vocab_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TESSERA_CHECK(
      file.is_open() && !std::filesystem::is_directory(path),
      "cannot read the vocabulary {}; a BERT folder needs it, or a tokenizer.json with 'model' and its 'vocab'",
      path);
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    tokens.emplace_back(
        std::move(line), static_cast<std::int64_t>(tokens.size()));
  }
  TESSERA_CHECK(!file.bad(), "reading the vocabulary {} failed", path);
  return {std::move(tokens), "the vocabulary " + path.string()};
}

std::int64_t Vocabulary::find(std::string_view token) const {
  const auto seat = ids_.find(token);
  return seat == ids_.end() ? -1 : seat->second;
}

const std::string& Vocabulary::token(std::int64_t id) const {
  TESSERA_CHECK(
      id >= 0 && id < size(),
      "token id {} is outside the vocabulary of {} tokens; were these ids made with another tokenizer?",
      id,
      size());
  return tokens_[static_cast<std::size_t>(id)];
}

} // namespace tessera::zoo

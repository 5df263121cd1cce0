// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/vocabulary.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <functional>

namespace tessera::text {

Vocabulary::Vocabulary(
    std::vector<std::pair<std::string, int64_t>> tokens,
    const std::string& origin) {
  TESSERA_CHECK(
      !tokens.empty(),
      "{} holds no tokens; fetch the model's folder again",
      origin);
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.second < b.second;
  });
  entries_.reserve(tokens.size());
  slots_.resize(std::bit_ceil(2 * tokens.size()));
  for (auto& [token, id] : tokens) {
    TESSERA_CHECK(
        id >= 0 && id < int64_t{1} << 31,
        "{}: token '{}' has id {}; ids must be 0 .. 2147483647; fetch the model's folder again",
        origin,
        token,
        id);
    TESSERA_CHECK(
        entries_.empty() || entries_.back().id != id,
        "{}: tokens '{}' and '{}' both have id {}; an id must be one token's; fetch the model's folder again",
        origin,
        entries_.back().token,
        token,
        id);
    const size_t hash = std::hash<std::string_view>{}(token);
    size_t seat = hash & (slots_.size() - 1);
    for (; slots_[seat].entry != kFree;
         seat = (seat + 1) & (slots_.size() - 1)) {
      const Entry& other = entries_[slots_[seat].entry];
      TESSERA_CHECK(
          other.token != token,
          "{}: token '{}' appears twice, with ids {} and {} (lines {} and {} of a vocab.txt); remove one of them only together with its row of the word embeddings, or fetch the model's folder again",
          origin,
          token,
          other.id,
          id,
          other.id + 1,
          id + 1);
    }
    slots_[seat] = {
        static_cast<uint32_t>(hash >> 32),
        static_cast<uint32_t>(entries_.size())};
    longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
    entries_.push_back({std::move(token), static_cast<uint32_t>(id)});
  }
}

Vocabulary Vocabulary::from_vocab_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TESSERA_CHECK(
      file.is_open() && !std::filesystem::is_directory(path),
      "cannot read the vocabulary {}; a BERT folder needs it, or a tokenizer.json with 'model' and its 'vocab'",
      path);
  std::vector<std::pair<std::string, int64_t>> tokens;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    TESSERA_CHECK(
        !line.empty(),
        "the vocabulary {}: line {} is empty; remove it or fetch the model's folder again",
        path,
        tokens.size() + 1);
    tokens.emplace_back(std::move(line), static_cast<int64_t>(tokens.size()));
  }
  TESSERA_CHECK(!file.bad(), "reading the vocabulary {} failed", path);
  return {std::move(tokens), "the vocabulary " + path.string()};
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  const size_t hash = std::hash<std::string_view>{}(token);
  const auto upper = static_cast<uint32_t>(hash >> 32);
  for (size_t seat = hash & (slots_.size() - 1);;
       seat = (seat + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[seat];
    if (slot.entry == kFree) {
      return std::nullopt;
    }
    if (slot.hash == upper && entries_[slot.entry].token == token) {
      return entries_[slot.entry].id;
    }
  }
}

const std::string& Vocabulary::token(uint32_t id) const {
  static const std::string none;
  // Up to the first id that is left out, a token's id is its index.
  if (id < entries_.size() && entries_[id].id == id) {
    return entries_[id].token;
  }
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), id, [](const Entry& entry, uint32_t i) {
        return entry.id < i;
      });
  return found == entries_.end() || found->id != id ? none : found->token;
}

} // namespace tessera::text

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/cached_token_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/utf8.h"
#include "tessera/text/tokenizer/word_cache.h"

#include <utility>

namespace tessera::text {
namespace {

/// Where the first U+2581 that follows another character stands.
size_t find_inner_space(std::string_view text) {
  size_t at = text.find(kEscapedSpace);
  while (at != std::string_view::npos) {
    const bool is_inner =
        at > 0 && !text.substr(0, at).ends_with(kEscapedSpace);
    if (is_inner) {
      return at;
    }
    at = text.find(kEscapedSpace, at + kEscapedSpace.size());
  }
  return at;
}

} // namespace

bool has_inner_space(std::string_view token) {
  return find_inner_space(token) != std::string_view::npos;
}

std::vector<std::optional<uint32_t>> byte_tokens(const Vocabulary& vocabulary) {
  std::vector<std::optional<uint32_t>> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(
        vocabulary.find(token_of_byte(static_cast<unsigned char>(byte))));
  }
  return tokens;
}

struct CachedTokenModel::Cache : TokenModelCache {
  const CachedTokenModel* model = nullptr;
  std::unique_ptr<Scratch> scratch;
  WordCache words;
  std::string written; ///< bytes, as the vocabulary writes them
  std::vector<uint32_t> byte_at; ///< of each byte of `written`
};

CachedTokenModel::CachedTokenModel(Vocabulary&& vocabulary, Traits traits)
    : vocabulary_(std::move(vocabulary)), traits_(traits) {}

std::unique_ptr<TokenModelCache> CachedTokenModel::make_cache() const {
  auto cache = std::make_unique<Cache>();
  cache->model = this;
  cache->scratch = make_scratch();
  return cache;
}

void CachedTokenModel::divide_bytes(
    std::string_view word,
    Cache& cache,
    std::vector<WordToken>& tokens) const {
  cache.written.clear();
  cache.byte_at.clear();
  for (uint32_t i = 0; i < word.size(); ++i) {
    append_utf8(
        cache.written, byte_alphabet()[static_cast<unsigned char>(word[i])]);
    cache.byte_at.resize(cache.written.size(), i);
  }
  size_t i = tokens.size();
  divide(cache.written, *cache.scratch, tokens);
  for (; i < tokens.size(); ++i) {
    ByteRange& range = tokens[i].bytes;
    range.end = range.end == 0 ? 0 : cache.byte_at[range.end - 1] + 1;
    range.begin = range.begin < cache.byte_at.size()
                      ? cache.byte_at[range.begin]
                      : range.end;
  }
}

void CachedTokenModel::append_part(
    std::string_view word,
    Cache& cache,
    std::vector<WordToken>& tokens) const {
  const bool is_cached = word.size() <= WordCache::kLongestWordBytes;
  const uint64_t hash = is_cached ? WordCache::hash_of(word) : 0;
  if (is_cached) {
    if (const auto known = cache.words.find(word, hash)) {
      tokens.insert(tokens.end(), known->begin(), known->end());
      return;
    }
  }
  const size_t first = tokens.size();
  if (traits_.has_bytes) {
    divide_bytes(word, cache, tokens);
  } else {
    divide(word, *cache.scratch, tokens);
  }
  if (is_cached) {
    cache.words.insert(word, hash, std::span(tokens).subspan(first));
  }
}

void CachedTokenModel::append(
    std::string_view word,
    TokenModelCache& any_cache,
    std::vector<WordToken>& tokens) const {
  auto& cache = static_cast<Cache&>(any_cache);
  TESSERA_CHECK(
      cache.model == this,
      "a token model is given a cache that another one made; use make_cache() of the same model");
  if (!traits_.divides_at_spaces) {
    append_part(word, cache, tokens);
    return;
  }
  for (uint32_t begin = 0; begin < word.size();) {
    const std::string_view rest = word.substr(begin);
    const std::string_view part = rest.substr(0, find_inner_space(rest));
    size_t i = tokens.size();
    append_part(part, cache, tokens);
    for (; i < tokens.size(); ++i) {
      tokens[i].bytes.begin += begin;
      tokens[i].bytes.end += begin;
    }
    begin += static_cast<uint32_t>(part.size());
  }
}

} // namespace tessera::text

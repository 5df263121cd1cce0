// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/word_cache.h"

#include <gtest/gtest.h>

namespace tessera::text::word_cache_test {
namespace {

std::vector<WordToken> tokens_of(uint32_t i) {
  std::vector<WordToken> tokens(i % 5);
  for (uint32_t k = 0; k < tokens.size(); ++k) {
    tokens[k] = {i + k, {k, k + 1}};
  }
  return tokens;
}

} // namespace

TEST(WordCache, GivesEachWordItsTokensAndForgetsInTheEnd) {
  WordCache cache;
  const auto find = [&](const std::string& word) {
    return cache.find(word, WordCache::hash_of(word));
  };
  EXPECT_FALSE(find("0"));
  uint32_t in_cache = 0;
  for (uint32_t i = 0; i < 200000; ++i) {
    const std::string word = std::to_string(i);
    cache.insert(word, WordCache::hash_of(word), tokens_of(i));
    in_cache = find("0") ? i : in_cache;
    const std::string other = std::to_string(i * 7919ULL % (i + 1));
    if (const auto found = find(other)) {
      const auto expected = tokens_of(static_cast<uint32_t>(std::stoul(other)));
      ASSERT_EQ(found->size(), expected.size()) << other;
      for (size_t k = 0; k < expected.size(); ++k) {
        ASSERT_EQ((*found)[k].id, expected[k].id);
        ASSERT_EQ((*found)[k].bytes, expected[k].bytes);
      }
    } else {
      ASSERT_GT(i, in_cache) << "forgotten too early";
    }
  }
  EXPECT_GE(in_cache, 65535U);
  EXPECT_FALSE(find("0"));
  EXPECT_TRUE(find("199999"));
}

TEST(WordCache, TellsWordsOfOneHashApart) {
  WordCache cache;
  cache.insert("a", 5, tokens_of(1));
  cache.insert("b", 5, tokens_of(3));
  cache.insert("ab", 5 + (uint64_t{1} << 32), {});
  EXPECT_EQ(cache.find("a", 5)->size(), 1U);
  EXPECT_EQ(cache.find("b", 5)->size(), 3U);
  EXPECT_FALSE(cache.find("c", 5));
  EXPECT_EQ(cache.find("ab", 5 + (uint64_t{1} << 32))->size(), 0U);
}

} // namespace tessera::text::word_cache_test

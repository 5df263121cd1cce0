// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/vocabulary.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

namespace tessera::text::vocabulary_test {

TEST(Vocabulary, FindsTokensAndIdsAcrossGaps) {
  std::vector<std::pair<std::string, int64_t>> tokens;
  for (int64_t i = 0; i < 2000; ++i) {
    tokens.emplace_back("t" + std::to_string(i), i < 100 ? i : 7 * i);
  }
  tokens.emplace_back("last", 2147483647);
  const Vocabulary vocabulary(tokens, "here");
  EXPECT_EQ(vocabulary.count(), 2001U);
  EXPECT_EQ(vocabulary.size(), 2147483648U);
  for (const auto& [token, id] : tokens) {
    ASSERT_EQ(vocabulary.find(token), static_cast<uint32_t>(id));
    ASSERT_EQ(vocabulary.token(static_cast<uint32_t>(id)), token);
  }
  EXPECT_EQ(vocabulary.find("t2000"), std::nullopt);
  EXPECT_EQ(vocabulary.find(""), std::nullopt);
  for (const uint32_t id : {100U, 701U, 2147483646U, 2147483648U}) {
    EXPECT_EQ(vocabulary.token(id), "") << id;
  }
}

TEST(Vocabulary, RefusesIdsAndTokensThatAreNotOneToOne) {
  expect_error([] { Vocabulary({}, "here"); }, {"here holds no tokens"});
  expect_error(
      [] {
        Vocabulary({{"a", 0}, {"b", 0}}, "here");
      },
      {"here", "'a'", "'b'", "id 0"});
  expect_error(
      [] {
        Vocabulary({{"a", 0}, {"a", 1}}, "here");
      },
      {"here", "'a' appears twice, with ids 0 and 1"});
  expect_error([] { Vocabulary({{"a", -1}}, "here"); }, {"'a' has id -1"});
  expect_error(
      [] {
        Vocabulary({{"a", 2147483648}}, "here");
      },
      {"has id 2147483648"});
}

} // namespace tessera::text::vocabulary_test

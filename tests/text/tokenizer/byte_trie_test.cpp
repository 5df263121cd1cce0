// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/byte_trie.h"

#include "support/mutations.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::text::byte_trie_test {

TEST(ByteTrie, FindsEveryPrefixOfItsSet) {
  Numbers numbers(1);
  for (const size_t letters : {2, 5, 256}) {
    const auto text = [&](size_t length) {
      std::string bytes;
      for (size_t i = 0; i < length; ++i) {
        bytes += static_cast<char>(255 - numbers.below(letters));
      }
      return bytes;
    };
    std::map<std::string, uint32_t> set;
    while (set.size() < (letters == 2 ? 300U : 5000U)) {
      set.emplace(text(1 + numbers.below(9)), set.size());
    }
    const ByteTrie trie({set.begin(), set.end()});
    for (int round = 0; round < 3000; ++round) {
      const std::string searched = text(numbers.below(14));
      std::vector<std::pair<size_t, uint32_t>> expected;
      for (size_t length = 1; length <= searched.size(); ++length) {
        if (const auto at = set.find(searched.substr(0, length));
            at != set.end()) {
          expected.emplace_back(length, at->second);
        }
      }
      std::vector<std::pair<size_t, uint32_t>> found;
      trie.for_each_prefix(searched, [&](size_t length, uint32_t value) {
        found.emplace_back(length, value);
      });
      ASSERT_EQ(found, expected);
    }
  }
}

TEST(ByteTrie, MayBeEmptyAndMayHaveZeros) {
  int count = 0;
  const auto visit = [&](size_t, uint32_t) { ++count; };
  ByteTrie({}).for_each_prefix("abc", visit);
  EXPECT_EQ(count, 0);
  const std::string zeros(2, '\0');
  ByteTrie({{zeros, 7}}).for_each_prefix(zeros + "a", visit);
  EXPECT_EQ(count, 1);
}

} // namespace tessera::text::byte_trie_test

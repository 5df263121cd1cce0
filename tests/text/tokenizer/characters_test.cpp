// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/characters.h"

#include "zoo/support.h"

#include <gtest/gtest.h>

#include <functional>

namespace tessera::text::characters_test {
namespace {

/// Counts the code points that are in `runs` and not `is_in`, or the reverse.
int count_differences(
    const nlohmann::json& runs,
    const std::function<bool(char32_t)>& is_in) {
  int differences = 0;
  size_t run = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) {
      continue;
    }
    while (run < runs.size() && runs[run][1].get<char32_t>() < c) {
      ++run;
    }
    const bool expected =
        run < runs.size() && runs[run][0].get<char32_t>() <= c;
    if (is_in(c) != expected && ++differences < 10) {
      ADD_FAILURE() << "U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
  return differences;
}

} // namespace

// Every code point, against the tokenizers library.
TEST(Characters, HaveTheClassesOfTheReference) {
  const nlohmann::json reference =
      read_json(fixture("tokenizer_characters.json"));
  EXPECT_EQ(count_differences(reference.at("numbers"), is_numeric), 0);
  EXPECT_EQ(count_differences(reference.at("words"), is_word_character), 0);
  EXPECT_EQ(
      count_differences(
          reference.at("no_script"),
          [](char32_t c) { return script_of(c) == kAnyScript; }),
      0);
}

TEST(Characters, HaveTheLowerCaseOfTheReference) {
  const nlohmann::json reference =
      read_json(fixture("tokenizer_characters.json"));
  for (const auto& letter : reference.at("lower_case")) {
    EXPECT_EQ(lower_case(letter[0].get<char32_t>()), letter[1].get<char32_t>());
  }
  EXPECT_EQ(lower_case(U'À'), U'à');
  EXPECT_EQ(lower_case(U'Σ'), U'σ');
}

} // namespace tessera::text::characters_test

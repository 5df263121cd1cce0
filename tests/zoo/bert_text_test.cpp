// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/bert_text.h"

#include "zoo/support.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo::bert_text_test {
namespace {

using Words = std::vector<std::string>;

std::string utf8(std::uint32_t c) {
  const auto tail = [c](int shift) {
    return static_cast<char>(0x80U | ((c >> shift) & 0x3fU));
  };
  if (c < 0x80) {
    return {static_cast<char>(c)};
  }
  if (c < 0x800) {
    return {static_cast<char>(0xc0U | (c >> 6)), tail(0)};
  }
  if (c < 0x10000) {
    return {static_cast<char>(0xe0U | (c >> 12)), tail(6), tail(0)};
  }
  return {static_cast<char>(0xf0U | (c >> 18)), tail(12), tail(6), tail(0)};
}

// The class letters of tools/fixtures/bert_tokenizer.py, for c in "a" c "b".
char classify(const Words& words, std::string& image) {
  std::string all;
  for (const std::string& word : words) {
    all += word;
  }
  image = all.substr(1, all.size() - 2);
  if (words.size() == 1) {
    return image.empty() ? 'R' : 'L';
  }
  return image.empty() ? 'S' : 'P';
}

} // namespace

// Every code point, against the tokenizers library.
TEST(BertText, TreatsEveryCodePointAsTheReferenceDoes) {
  const nlohmann::json reference = read_json(fixture("bert_code_points.json"));
  const nlohmann::json& runs = reference.at("runs");
  const nlohmann::json& images = reference.at("images");
  std::size_t run = 0;
  int differences = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (0xd800 <= c && c < 0xe000) {
      continue; // surrogates have no UTF-8 form
    }
    while (run + 1 < runs.size() &&
           runs[run + 1][0].get<std::uint32_t>() <= c) {
      ++run;
    }
    char expected = runs[run][1].get<std::string>()[0];
    if (expected == 'J') {
      expected = 'P'; // both stand alone
    }
    std::string image;
    const char found =
        classify(split_bert_words(formatted("a{}b", utf8(c)), {}), image);
    std::ostringstream key;
    key << std::hex << c;
    const nlohmann::json expected_image =
        expected == 'L' || expected == 'P'
            ? images.value(key.str(), nlohmann::json(utf8(c)))
            : nlohmann::json("");
    const bool hangul = 0xac00 <= c && c < 0xd7a4; // decomposed by rule
    const bool newer = c == 0x11938; // decomposes since Unicode 13 only
    const bool same_image =
        hangul || newer || expected_image.is_null() || expected_image == image;
    if (found != expected || !same_image) {
      ++differences;
      ADD_FAILURE() << "U+" << key.str() << ": class " << found << ", not "
                    << expected << "; image '" << image << "', not "
                    << expected_image;
      ASSERT_LT(differences, 50);
    }
  }
}

TEST(BertText, SplitsAtSpacesAndPunctuation) {
  EXPECT_EQ(
      split_bert_words(" Don't\tSTOP\u00a0now! ", {}),
      (Words{"don", "'", "t", "stop", "now", "!"}));
  EXPECT_EQ(split_bert_words("", {}), Words{});
  EXPECT_EQ(split_bert_words(" \n\u3000", {}), Words{});
}

TEST(BertText, KeepsCaseAccentsAndIdeographsOnRequest) {
  const std::string text = "\u00c9cole \u4e2d\u6587";
  EXPECT_EQ(split_bert_words(text, {}), (Words{"ecole", "\u4e2d", "\u6587"}));
  EXPECT_EQ(
      split_bert_words(
          text,
          {.lower_case = false,
           .strip_accents = false,
           .split_chinese = false}),
      (Words{"\u00c9cole", "\u4e2d\u6587"}));
}

TEST(BertText, DropsIllFormedBytes) {
  EXPECT_EQ(
      split_bert_words("he\xffllo w\xc3orld\xf0\x9f\x98", {}),
      (Words{"hello", "world"}));
}

} // namespace tessera::zoo::bert_text_test

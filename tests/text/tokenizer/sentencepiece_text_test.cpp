// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/sentencepiece_text.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace tessera::text::sentencepiece_text_test {
namespace {

/// A charsmap by which U+0001 goes: the size of the trie, its units (root, the
/// value behind the key, the key's byte) and the texts that replace keys.
std::string without_control_character() {
  std::array<uint32_t, 1 + 256> units{
      1024, 2U << 10U, 0, 1U << 31U, 1U | 1U << 8U | 1U << 10U};
  std::string map(sizeof units + 1, '\0');
  std::memcpy(map.data(), units.data(), sizeof units);
  return map;
}

std::string normalized(const std::string& text, bool adds_suffix) {
  SentencePieceModel model;
  model.normalizer.precompiled_charsmap = without_control_character();
  model.treat_whitespace_as_suffix = adds_suffix;
  AlignedText aligned(text, 0, /*keeps_origins=*/true);
  sentencepiece_normalizer(model)->apply(aligned);
  return aligned.text();
}

} // namespace

// As sentencepiece 0.2.3, whose pieces of "\1" are [] and ["_"].
TEST(SentencePieceText, ASpaceBehindCharactersThatGoStays) {
  const std::string space = "\xe2\x96\x81";
  for (const std::string text : {"\1", "\1 ", " \1", " \1 \1 "}) {
    EXPECT_EQ(normalized(text, false), "") << text;
    EXPECT_EQ(normalized(text, true), space) << text;
  }
  for (const std::string text : {"", " ", "  "}) {
    EXPECT_EQ(normalized(text, false), "") << text;
    EXPECT_EQ(normalized(text, true), "") << text;
  }
  EXPECT_EQ(normalized(" \1 a\1", false), space + "a");
  EXPECT_EQ(normalized(" \1 a\1", true), "a" + space);
}

} // namespace tessera::text::sentencepiece_text_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/character_map.h"

#include "support/expect_error.h"
#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/utf8.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tessera::text::character_map_test {
namespace {

/// That of the fixture.
std::string map_bytes() {
  const nlohmann::json reference = read_json(fixture("tokenizer_parts.json"));
  for (const auto& part : reference.at("parts")) {
    if (part.at("section").at("type") == "Precompiled") {
      return decode_base64(
          part.at("section").at("precompiled_charsmap").get<std::string>(),
          "the fixture");
    }
  }
  return "";
}

} // namespace

TEST(CharacterMap, RefusesWhatIsCutOff) {
  const std::string bytes = map_bytes();
  ASSERT_GT(bytes.size(), 1000U);
  expect_error(
      [&] { CharacterMap(bytes.substr(0, 3)); }, {"load a complete file"});
  expect_error(
      [&] { CharacterMap(bytes.substr(0, 500)); }, {"load a complete file"});
  std::string no_utf8 = bytes;
  no_utf8.back() = '\xff';
  expect_error([&] { CharacterMap{no_utf8}; }, {"no UTF-8"});
}

// Whatever the bytes are, there is a result or an error.
TEST(CharacterMap, SurvivesCorruptBytes) {
  const std::string bytes = map_bytes();
  std::mt19937 random(1);
  const std::string text =
      "aäéfixyz\u200bzfi\u0301é\u0301A\u0308\r\n©\u3000一\U0001f600";
  int failed = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string corrupt = bytes;
    for (int i = 0; i < 20; ++i) {
      corrupt[4 + random() % (corrupt.size() - 4)] =
          static_cast<char>(random());
    }
    try {
      std::vector<Rewritten> result;
      CharacterMap(corrupt).append_mapped(text, result);
    } catch (const Error& error) {
      EXPECT_NE(
          std::string(error.what()).find("precompiled_charsmap"),
          std::string::npos);
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
}

TEST(CharacterMap, ReadsBase64) {
  EXPECT_EQ(decode_base64("", "it"), "");
  EXPECT_EQ(decode_base64("aGk=", "it"), "hi");
  EXPECT_EQ(decode_base64("aGkh", "it"), "hi!");
  EXPECT_EQ(decode_base64("aA==", "it"), "h");
  expect_error([&] { decode_base64("aGk", "it"); }, {"it has 3 characters"});
  expect_error(
      [&] { decode_base64("a=k=", "it"); }, {"character 1 of it is no digit"});
  expect_error(
      [&] { decode_base64("aG-h", "it"); }, {"character 2 of it is no digit"});
}

} // namespace tessera::text::character_map_test

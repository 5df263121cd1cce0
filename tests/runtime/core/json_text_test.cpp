// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"

namespace tessera::runtime::json_text_test {

TEST(ParseJson, ReadsValues) {
  const auto value = parse_json(R"( {"a": [1, 2.5, "x", null, true]} )", "f");
  EXPECT_EQ(value.dump(), R"({"a":[1,2.5,"x",null,true]})");
  EXPECT_EQ(parse_json("3", "f"), 3);
  // The same key in different objects is fine.
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", "f"));
}

TEST(ParseJson, SyntaxErrorsNameFileLineAndColumn) {
  const auto refuse = [](std::string_view text, const char* place) {
    expect_error(
        [&] { parse_json(text, "dir/c.json"); }, {place, "not valid JSON"});
  };
  refuse("{\n  \"a\": 1,\n  \"b\": tru\n}", "dir/c.json:3:11: ");
  refuse("{\"a\": 1,}", "dir/c.json:1:9: ");
  refuse("", "dir/c.json:1:1: ");
  refuse("{\"a\": 1}\n// note", "dir/c.json:2:1: ");
  refuse("{\"a\": NaN}", "dir/c.json:1:7: ");
  refuse("[1,\n 2", "dir/c.json:2:3: ");
  refuse(std::string_view("{}\n\0[", 5), "dir/c.json:2:1: ");
  refuse("[\"\xc3\x28\"]", "dir/c.json:1:4: ");
}

TEST(ParseJson, RefusesDuplicateKeys) {
  expect_error(
      [] { parse_json("{\"a\": {\n \"b\": 1,\n \"b\": 1}}", "c.json"); },
      {"c.json:3:4: ", "\"b\"", "twice", "remove"});
}

TEST(ParseJson, RefusesEndlessNestingAndHugeNumbers) {
  const std::string deep(100000, '[');
  expect_error([&] { parse_json(deep, "c.json"); }, {"c.json:1:", "nested"});
  EXPECT_NO_THROW(
      parse_json(std::string(60, '[') + std::string(60, ']'), "c.json"));
  expect_error(
      [&] { parse_json("[1e999]", "c.json"); }, {"c.json:1:", "1e999"});
  // The key tells the place to those whose editor counts no columns.
  for (const char* const value : {"1e999", "NaN", "-"}) {
    expect_error(
        [&] { parse_json(std::string("{\"size\": ") + value + "}", "c.json"); },
        {"c.json:1:", "the key \"size\""});
  }
}

TEST(ParseJson, TakesLinearTime) {
  // Quadratic time would be hours.
  constexpr int kMembers = 500000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) {
    text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"a":[{}]})";
  }
  EXPECT_EQ(parse_json(text + "}", "f").size(), kMembers);
}

TEST(ShowJson, CutsLongValuesAndSurvivesBadUtf8) {
  EXPECT_EQ(show_json({{"a", 1}}), "{\"a\":1}");
  EXPECT_LT(show_json(std::string(1000, 'x')).size(), 100u);
  EXPECT_NO_THROW(show_json("\xff"));
}

TEST(ParseJson, CountsLinesFromAFirstOneAndEscapesBytes) {
  expect_error(
      [] { parse_json("{\n\"a\": \"\xc3\xa9\xe9\"}", "f", 57); },
      {"f:58:10: ", "\"\xc3\xa9\\xE9\""});
  expect_error([] { parse_json(R"({"a": 1, "a": 2})", "f", 9); }, {"f:9:"});
}

TEST(ShowJson, DoesNotCutACharacter) {
  constexpr size_t kCutAt = 78; // and a quote: one byte more is shown
  std::string text(kCutAt, 'x');
  text += "\xc3\xa9 and more";
  EXPECT_EQ(show_json(text), "\"" + std::string(kCutAt, 'x') + "...");
}

} // namespace tessera::runtime::json_text_test

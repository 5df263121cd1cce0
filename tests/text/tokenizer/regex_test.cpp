// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/regex.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::text::regex_test {
namespace {

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr size_t kMebibyte = size_t{1} << 20;

std::vector<ByteRange> find_all(
    const std::string& pattern,
    const std::string& text) {
  std::vector<ByteRange> matches;
  Regex(pattern).find_all(text, matches);
  return matches;
}

std::string repeated(const std::string& part, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += part;
  }
  return text;
}

} // namespace

TEST(Regex, RefusesWhatHasNoCounterpart) {
  const std::vector<std::pair<const char*, const char*>> kPatterns = {
      {"a)", "an unmatched )"},
      {"(a", "an unmatched ("},
      {"[a", "an end that is too early"},
      {"[]", "an empty class of characters"},
      {"[^]", "an empty class of characters"},
      {"[a&&]", "an empty class of characters"},
      {"[z-a]", "a range that ends before it begins"},
      {R"([\w-z])", "a range from a set of characters"},
      {R"([a-\d])", "a range to a set of characters"},
      {"*a", "a quantifier of nothing"},
      {"(?=a)*", "a quantifier of nothing that can be repeated"},
      {"a{3,1}", "an interval that ends before it begins"},
      {"a{99999}", "a number above 65535"},
      {"(?s).", "a kind of group or an option that is unknown"},
      {"(?~ab)", "a kind of group or an option that is unknown"},
      {"(?(1)a)", "a kind of group or an option that is unknown"},
      {R"(\K)", "the escape \\K"},
      {R"(\X)", "the escape \\X"},
      {R"(\y)", "the escape \\y"},
      {R"(\g<1>)", "the escape \\g"},
      {R"(\pL)", "\\p without {name}"},
      {R"(\p{L)", "\\p{ without }"},
      {R"(\p{script=Han})", "a property of characters that is unknown"},
      {R"(\p{In_Greek})", "a property of characters that is unknown"},
      {R"([[:han:]])", "a class that is not known by this name"},
      {R"(\x{110000})", "the number of no character"},
      {R"(\xe9)", "a byte that is part of a character"},
      {R"(\u12)", "a number with too few digits"},
      {R"(\1)", "cannot be compiled"},
      {R"((?<n>a)\1)", "numbers of groups beside names of groups"},
      {"(?i)stop", "letters that have a ligature"},
      {R"((?i:\p{Lu}))", "letters of one case"},
      {"(?i:[a[^b]])", "an inverted class in another one"},
      {"a\\", "a backslash at the end"}};
  for (const auto& [pattern, error] : kPatterns) {
    expect_error([&] { Regex{pattern}; }, {error});
  }
  expect_error(
      [&] { Regex(repeated("(", 1000) + repeated(")", 1000)); },
      {"too many groups within each other"});
}

TEST(Regex, FindsEmptyMatchesOnce) {
  using Ranges = std::vector<ByteRange>;
  EXPECT_EQ(find_all("x*", "axé"), (Ranges{{0, 0}, {1, 2}, {4, 4}}));
  EXPECT_EQ(find_all("$", "a\nb\n"), (Ranges{{1, 1}, {3, 3}, {4, 4}}));
  EXPECT_EQ(find_all("^", "a\nb\n"), (Ranges{{0, 0}, {2, 2}}));
}

TEST(Regex, FindsVeryLongWords) {
  for (const char* const part :
       {"a", " ", "\n", "1", "!", "é", "字", "\xf0\x9f\x98\x80"}) {
    const std::string text = repeated(part, kMebibyte);
    const std::vector<ByteRange> matches = find_all(kLlama3, text);
    ASSERT_FALSE(matches.empty());
    EXPECT_EQ(matches.back().end, text.size()) << part;
    EXPECT_EQ(matches.front().begin, 0U) << part;
  }
  // Each of its repetitions is remembered.
  const std::string text = repeated("ab", kMebibyte);
  EXPECT_EQ(
      find_all("(?:a|(?:b))+", text),
      (std::vector<ByteRange>{{0, static_cast<uint32_t>(text.size())}}));
}

// Unicode 15 and 16 have them: letters, digits and a pictograph.
TEST(Regex, KnowsCharactersThatPcre2MayNot) {
  EXPECT_EQ(find_all(R"(\p{L}+)", "\U00031350\U00016100a").size(), 1U);
  EXPECT_EQ(find_all(R"(\p{Han})", "\U00031350").size(), 1U);
  EXPECT_EQ(find_all(R"([^\p{N}])", "\U00016130").size(), 0U);
  EXPECT_EQ(find_all(R"(\P{S})", "\U0001fae8").size(), 0U);
  EXPECT_EQ(find_all(R"(\w)", "\U00016130").size(), 1U);
}

} // namespace tessera::text::regex_test

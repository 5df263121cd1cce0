// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"
#include "tessera/text/tokenizer/utf8.h"

#include "support/expect_error.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::text::tokenizer_parts_test {
namespace {

using nlohmann::json;

/// A normalizer or a pre-tokenizer.
struct Part {
  explicit Part(const json& part) {
    const runtime::JsonValue section(part.at("section"), "section");
    if (part.at("kind") == "normalizer") {
      normalizer = read_normalizer(section);
    } else {
      pre_tokenizer = read_pre_tokenizer(section);
    }
  }
  void apply(AlignedText& text) const {
    normalizer ? normalizer->apply(text) : pre_tokenizer->apply(text);
  }
  bool makes_bytes() const {
    return pre_tokenizer && pre_tokenizer->makes_bytes();
  }

  std::unique_ptr<const Normalizer> normalizer;
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
};

/// A word as the library has it, and where its characters come from.
struct Word {
  std::string text;
  std::vector<ByteRange> origins;
  bool operator==(const Word&) const = default;
};
using Words = std::vector<Word>;

std::ostream& operator<<(std::ostream& out, const Word& word) {
  out << json(word.text).dump();
  for (const ByteRange& origin : word.origins) {
    out << ' ' << origin.begin << '-' << origin.end;
  }
  return out;
}

Words expected_words(const json& result, const std::string& text) {
  std::vector<uint32_t> bytes; // where characters begin
  for_each_code_point(text, [&](char32_t, size_t at) {
    bytes.push_back(static_cast<uint32_t>(at));
  });
  const auto count = static_cast<uint32_t>(bytes.size());
  bytes.push_back(static_cast<uint32_t>(text.size()));
  Words words;
  const auto add_run = [&](uint32_t begin, uint32_t times) {
    for (uint32_t i = begin; i < begin + times; ++i) {
      words.back().origins.push_back({bytes.at(i), bytes.at(i + 1)});
    }
  };
  if (result.is_null()) {
    words.push_back({text, {}});
    add_run(0, count);
    return words;
  }
  for (const json& word : result) {
    words.push_back({word[0].get<std::string>(), {}});
    for (size_t i = 1; i < word.size(); ++i) {
      const json& run = word[i];
      if (run.size() == 2) {
        add_run(run[1].get<uint32_t>(), run[0].get<uint32_t>());
        continue;
      }
      const ByteRange origin{
          bytes.at(run[0].get<uint32_t>()), bytes.at(run[1].get<uint32_t>())};
      words.back().origins.insert(
          words.back().origins.end(), run[2].get<size_t>(), origin);
    }
  }
  return words;
}

Words words_of(const AlignedText& text, bool are_bytes) {
  Words words;
  for (size_t i = 0; i < text.words().size(); ++i) {
    const std::string word(text.word(i));
    if (word.empty()) {
      continue;
    }
    words.push_back({are_bytes ? token_of_bytes(word) : word, {}});
    for (size_t at = 0; at < word.size();) {
      const size_t length = are_bytes ? 1 : utf8_length(word, at);
      const auto begin = static_cast<uint32_t>(text.words()[i].begin + at);
      words.back().origins.push_back(
          text.origin({begin, begin + static_cast<uint32_t>(length)}));
      at += length;
    }
  }
  return words;
}

std::vector<std::string> texts_of(const AlignedText& text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.words().size(); ++i) {
    words.emplace_back(text.word(i));
  }
  return words;
}

json section(const std::string& kind, const std::string& text) {
  return {{"kind", kind}, {"section", json::parse(text)}};
}

} // namespace

TEST(TokenizerParts, GiveTheWordsAndOriginsOfTheReference) {
  const json reference = read_json(fixture("tokenizer_parts.json"));
  const auto texts = reference.at("texts").get<std::vector<std::string>>();
  ASSERT_GT(reference.at("parts").size(), 60U);
  for (const json& described : reference.at("parts")) {
    const Part part(described);
    const json& results = described.at("results");
    ASSERT_EQ(results.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      AlignedText text(texts[i], 0, true);
      part.apply(text);
      EXPECT_EQ(
          words_of(text, part.makes_bytes()),
          expected_words(results[i], texts[i]))
          << described.at("section") << " of text " << i;
    }
  }
}

// A part of a text has the results of a whole one, except that a prefix "for
// the first word" is for the text as it was given.
TEST(TokenizerParts, DoNotDependOnOriginsOrOffsets) {
  const json reference = read_json(fixture("tokenizer_parts.json"));
  const auto texts = reference.at("texts").get<std::vector<std::string>>();
  constexpr uint32_t kOffset = 1000;
  for (const json& described : reference.at("parts")) {
    const Part part(described);
    const bool depends =
        described.at("section").dump().find("\"first\"") != std::string::npos;
    for (const std::string& given : texts) {
      AlignedText with(given, 0, true);
      AlignedText without(given, 0, false);
      AlignedText later(given, kOffset, true);
      part.apply(with);
      part.apply(without);
      part.apply(later);
      EXPECT_EQ(texts_of(with), texts_of(without)) << described.at("section");
      if (depends) {
        continue;
      }
      Words expected = words_of(with, false);
      for (Word& word : expected) {
        for (ByteRange& origin : word.origins) {
          origin = {origin.begin + kOffset, origin.end + kOffset};
        }
      }
      EXPECT_EQ(words_of(later, false), expected) << described.at("section");
    }
  }
}

TEST(TokenizerParts, PrependToTheFirstWordOfTheGivenTextOnly) {
  const Part part(section(
      "pre_tokenizer",
      R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
          {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})"));
  const auto words = [&](const char* given, uint32_t offset) {
    AlignedText text(given, offset, false);
    part.apply(text);
    return texts_of(text);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(words("a b", 0), (Texts{"_a", "b"}));
  EXPECT_EQ(words(" a b", 0), (Texts{"a", "b"}));
  EXPECT_EQ(words("a b", 4), (Texts{"a", "b"}));
}

TEST(TokenizerParts, ReadOldMetaspaces) {
  const auto words = [](const std::string& fields) {
    AlignedText text("a b", 0, false);
    Part(section(
             "pre_tokenizer",
             R"({"type": "Metaspace", "replacement": "_")" + fields + "}"))
        .apply(text);
    return texts_of(text);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(words(""), (Texts{"_a", "_b"}));
  EXPECT_EQ(words(R"(, "add_prefix_space": true)"), (Texts{"_a", "_b"}));
  EXPECT_EQ(words(R"(, "add_prefix_space": false)"), (Texts{"a", "_b"}));
  EXPECT_EQ(
      words(R"(, "add_prefix_space": true, "prepend_scheme": "never")"),
      (Texts{"a", "_b"}));
  expect_error(
      [&] {
        words(R"(, "add_prefix_space": false, "prepend_scheme": "always")");
      },
      {"must be never, as add_prefix_space is false"});
}

TEST(TokenizerParts, RefuseWrongSections) {
  const std::vector<std::pair<std::string, std::string>> kNormalizers = {
      {R"({"type": "NFX"})", "must be one of BertNormalizer, NFC"},
      {R"({})", "type"},
      {R"({"type": "Strip", "strip_left": true})", "strip_right"},
      {R"({"type": "Replace", "pattern": " ", "content": ""})", "pattern"},
      {R"({"type": "Replace", "pattern": {"String": "a", "Regex": "b"},
           "content": ""})",
       "must be"},
      {R"({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})",
       "unmatched ("},
      {R"({"type": "Prepend", "prepend": 1})", "prepend"},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, 3]})",
       "normalizers"},
      {R"({"type": "BertNormalizer"})", "clean_text"},
      {R"({"type": "Precompiled", "precompiled_charsmap": ""})",
       "load a complete file"}};
  for (const auto& [text, error] : kNormalizers) {
    expect_error([&] { Part(section("normalizer", text)); }, {error.c_str()});
  }
  const std::vector<std::pair<std::string, std::string>> kPreTokenizers = {
      {R"({"type": "Spaces"})", "must be one of BertPreTokenizer, ByteLevel"},
      {R"({"type": "CharDelimiterSplit", "delimiter": "ab"})", "one character"},
      {R"({"type": "CharDelimiterSplit", "delimiter": ""})", "one character"},
      {R"({"type": "FixedLength", "length": 0})", "length"},
      {R"({"type": "Punctuation", "behavior": "isolated"})", "must be Removed"},
      {R"({"type": "ByteLevel", "add_prefix_space": true})", "trim_offsets"},
      {R"({"type": "Split", "pattern": {"String": "a"},
           "behavior": "Isolated"})",
       "invert"},
      {R"({"type": "Metaspace", "replacement": "_",
           "prepend_scheme": "last"})",
       "always, first or never"}};
  for (const auto& [text, error] : kPreTokenizers) {
    expect_error(
        [&] { Part(section("pre_tokenizer", text)); }, {error.c_str()});
  }
}

} // namespace tessera::text::tokenizer_parts_test

// SPDX-License-Identifier: Apache-2.0
// Tokenizers like those of published families, against the `tokenizers`
// package (tools/fixtures/tokenizer_families.py).
#include "tessera/zoo/tokenizer/tokenizer.h"

#include "support/expect_error.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

namespace tessera::zoo::tokenizer_test {
namespace {

using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const nlohmann::json& cases() {
  static const nlohmann::json kCases =
      read_json(fixture("tokenizers/cases.json"));
  return kCases;
}

Tokenizer family(const std::string& name) {
  return Tokenizer::from_file(fixture("tokenizers/" + name + ".json"));
}

// Here too, because a program names its tests where the fixtures may be missing
// (scripts/gpu_tests.sh packs few).
constexpr const char* kFamilies[] = {
    "albert",
    "bert",
    "bert_cased",
    "bloom",
    "clip",
    "deberta",
    "deepseek",
    "falcon",
    "gemma",
    "gpt2",
    "gpt4o",
    "gpt_neox",
    "llama2",
    "llama3",
    "qwen2",
    "roberta",
    "starcoder",
    "t5",
    "words"};

/// The ends of the places of tokens, in bytes, one after the other.
Ids places_of(const Encoding& encoding) {
  Ids places;
  for (const PlacedToken& token : encoding.tokens) {
    places.push_back(token.bytes.begin);
    places.push_back(token.bytes.end);
  }
  return places;
}

Ids types_of(const Encoding& encoding) {
  Ids types;
  for (const PlacedToken& token : encoding.tokens) {
    types.push_back(token.type_id);
  }
  return types;
}

class TokenizerFamily : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(TokenizerFamily, GivesIdsPlacesAndTextsOfTheReference) {
  const Tokenizer tokenizer = family(GetParam());
  const nlohmann::json& expected = cases().at("families").at(GetParam());
  const auto texts = cases().at("texts").get<Texts>();
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(nlohmann::json(texts[i]).dump());
    const Encoding encoding =
        tokenizer.encode(texts[i], {.with_offsets = true});
    const Ids ids = encoding.ids();
    EXPECT_EQ(ids, expected.at("ids")[i].get<Ids>());
    EXPECT_EQ(places_of(encoding), expected.at("offsets")[i].get<Ids>());
    EXPECT_EQ(tokenizer.encode(texts[i]).ids(), ids); // without places
    EXPECT_EQ(tokenizer.decode(ids), expected.at("decoded")[i]);
    EXPECT_EQ(tokenizer.decode(ids, true), expected.at("skipped")[i]);
    DecodeStream stream(tokenizer, /*skip_special_tokens=*/false);
    std::string streamed;
    for (const int64_t id : ids) {
      streamed += stream.add(id);
    }
    EXPECT_EQ(streamed + stream.finish(), expected.at("decoded")[i]);
  }
}

TEST_P(TokenizerFamily, JoinsPairsAsTheReference) {
  const Tokenizer tokenizer = family(GetParam());
  const nlohmann::json& expected =
      cases().at("families").at(GetParam()).at("pairs");
  const nlohmann::json& pairs = cases().at("pairs");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Encoding encoding = tokenizer.encode_pair(
        pairs[i][0].get<std::string>(), pairs[i][1].get<std::string>());
    EXPECT_EQ(encoding.ids(), expected[i][0].get<Ids>()) << pairs[i];
    EXPECT_EQ(types_of(encoding), expected[i][1].get<Ids>()) << pairs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerFamily,
    ::testing::ValuesIn(kFamilies),
    [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, AllFamiliesOfTheReferenceAreTested) {
  Texts names;
  for (const auto& [name, results] : cases().at("families").items()) {
    names.push_back(name);
  }
  EXPECT_EQ(names, Texts(std::begin(kFamilies), std::end(kFamilies)));
}

TEST(Tokenizer, BatchesOverThreadsAreTheSame) {
  const Tokenizer tokenizer = family("llama3");
  const auto texts = cases().at("texts").get<Texts>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const std::vector<Encoding> batch = tokenizer.encode_batch(views, {}, 3);
  ASSERT_EQ(batch.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(batch[i].ids(), tokenizer.encode(texts[i]).ids());
  }
  expect_error(
      [&] {
        tokenizer.encode_batch(
            views, {.truncation = {.max_length = 0, .strategy = {}}}, 0);
        tokenizer.encode_batch(
            views,
            {.truncation =
                 {.max_length = 1,
                  .strategy = TruncationStrategy::kOnlySecond}},
            2);
      },
      {"second text"});
}

TEST(Tokenizer, StreamsWithholdIncompleteCharacters) {
  const Tokenizer tokenizer = family("gpt2");
  const Ids ids = tokenizer.ids("\xf0\x9f\x91\x8b");
  ASSERT_GT(ids.size(), 1U);
  DecodeStream stream(tokenizer);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    EXPECT_EQ(stream.add(ids[i]), "");
  }
  EXPECT_EQ(stream.add(ids.back()), "\xf0\x9f\x91\x8b");
  stream.add(ids.front());
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST(Tokenizer, SpecialTokensInTextsMayBeReadAsText) {
  const Tokenizer tokenizer = family("gpt2");
  const auto end = tokenizer.id_of("<|end|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(tokenizer.ids("<|end|>"), Ids{*end});
  const Ids split =
      tokenizer
          .encode(
              "<|end|>",
              {.add_special_tokens = false, .splits_special_tokens = true})
          .ids();
  EXPECT_GT(split.size(), 1U);
  EXPECT_EQ(tokenizer.decode(split), "<|end|>");
}

TEST(Tokenizer, WindowsCoverATextWithOverlaps) {
  TokenSequence text(7);
  for (size_t i = 0; i < text.size(); ++i) {
    text[i].id = static_cast<int64_t>(i);
  }
  const auto windows = make_windows(text, 4, 2);
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[0].front().id, 0);
  EXPECT_EQ(windows[1].front().id, 2);
  EXPECT_EQ(windows[2].front().id, 4);
  EXPECT_EQ(windows[2].size(), 3U);
  EXPECT_EQ(make_windows({}, 4, 2).size(), 1U);
  expect_error([&] { make_windows(text, 2, 2); }, {"overlap by 2"});
}

} // namespace tessera::zoo::tokenizer_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/token_model.h"

#include "support/expect_error.h"
#include "text/tokenizer/token_model_cases.h"
#include "zoo/hostile/values.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <thread>

namespace tessera::text::token_model_test {
namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

json bpe() {
  return json::parse(
      R"({"type": "BPE", "dropout": null, "unk_token": "?", "fuse_unk": false,
          "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5,
                    "abc": 6, "<0x78>": 9},
          "merges": ["b c", "a b", "a bc"]})");
}

json unigram() {
  return json::parse(
      R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
          "vocab": [["?", 0], ["a", -1], ["b", -1], ["ab", -2], ["abb", -3],
                    ["<0x78>", -9]]})");
}

json wordpiece() {
  return json::parse(
      R"({"type": "WordPiece", "unk_token": "?", "max_input_chars_per_word": 4,
          "continuing_subword_prefix": "##",
          "vocab": {"?": 0, "a": 1, "ab": 2, "##b": 3, "##bc": 4}})");
}

json word_level() {
  return json::parse(
      R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 5, "a": 7}})");
}

json changed(json section, const std::string& key, json value) {
  section[key] = std::move(value);
  return section;
}

} // namespace

TEST(TokenModel, GivesTheTokensOfTheReference) {
  const json reference = read_json(fixture("token_models/tokenizers.json"));
  size_t count = 0;
  for (const json& one : reference.at("cases")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const auto model =
        token_model_of(one.at("model"), one.at("has_bytes").get<bool>());
    const auto cache = model->make_cache();
    for (const int round : {0, 1}) { // computed, and from the cache
      for (const json& row : one.at("words")) {
        const std::string word = row[0].get<std::string>();
        if (row[1].is_null()) {
          EXPECT_THROW(tokens_of(*model, word, *cache), Error) << word;
        } else {
          EXPECT_EQ(json(tokens_of(*model, word, *cache)), row[1])
              << word << ", round " << round;
          count += row[1].size();
        }
      }
    }
    const auto& vocab = one.at("model").at("vocab");
    for (size_t id = 0; vocab.is_array() && id < vocab.size(); ++id) {
      EXPECT_EQ(model->token(static_cast<uint32_t>(id)), vocab[id][0]);
    }
    if (vocab.is_object()) {
      for (const auto& [token, id] : vocab.items()) {
        EXPECT_EQ(model->find(token), id.get<uint32_t>());
        EXPECT_EQ(model->token(id.get<uint32_t>()), token);
      }
    }
  }
  EXPECT_GT(count, 10000U);
}

TEST(TokenModel, MergesByRankThenFromTheLeft) {
  const auto model = token_model_of(bpe());
  EXPECT_EQ(ids_of(*model, "abc"), (Ids{6})); // b c, then a bc
  EXPECT_EQ(ids_of(*model, "abab"), (Ids{4, 4}));
  EXPECT_EQ(ids_of(*model, "xxab"), (Ids{0, 0, 4}));
  const auto reordered =
      token_model_of(changed(bpe(), "merges", {"a b", "b c", "a bc"}));
  EXPECT_EQ(ids_of(*reordered, "abc"), (Ids{4, 3}));
  EXPECT_EQ(model->size(), 10U);
  EXPECT_EQ(model->token(7), "");
}

TEST(TokenModel, TreatsUnknownCharactersAsTheOptionsSay) {
  const auto ids = [](const json& section) {
    return ids_of(*token_model_of(section), "xxab");
  };
  EXPECT_EQ(ids(changed(bpe(), "fuse_unk", true)), (Ids{0, 4}));
  EXPECT_EQ(ids(changed(bpe(), "byte_fallback", true)), (Ids{9, 9, 4}));
  EXPECT_EQ(ids(changed(bpe(), "unk_token", nullptr)), (Ids{4}));
  expect_error(
      [&] { ids(changed(bpe(), "unk_token", "none")); }, {"'x'", "'none'"});
  EXPECT_EQ(ids(unigram()), (Ids{0, 3}));
  EXPECT_EQ(ids(changed(unigram(), "byte_fallback", true)), (Ids{5, 5, 3}));
  expect_error(
      [&] { ids(changed(unigram(), "unk_id", nullptr)); }, {"'x'", "unk_id"});
  EXPECT_EQ(ids(wordpiece()), (Ids{0}));
  expect_error(
      [&] { ids(changed(wordpiece(), "unk_token", "none")); },
      {R"("xxab")", R"("none")"});
  EXPECT_EQ(ids(word_level()), (Ids{5}));
  expect_error(
      [&] { ids(changed(word_level(), "unk_token", "none")); },
      {"'xxab'", "'none'"});
}

TEST(TokenModel, PrefersTheLongestLastTokenOfEqualPaths) {
  EXPECT_EQ(ids_of(*token_model_of(unigram()), "abb"), (Ids{4}));
  EXPECT_EQ(ids_of(*token_model_of(unigram()), "ab"), (Ids{3}));
}

// Scores made with tokenizers 0.23.3. With the nearest doubles the best path is
// "aaa" "aaa" "a".
TEST(TokenModel, RoundsScoresAsTheReference) {
  const auto model = token_model_of(json::parse(
      R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
          "vocab": [["?", 0.0], ["a", -5.356048865967729],
                    ["aa", -8.148127220034304], ["aaa", -3.7226514518506795]]})"));
  EXPECT_EQ(ids_of(*model, "aaaaaaa"), (Ids{1, 3, 3}));
}

TEST(TokenModel, CountsCharactersOfWordPiecesLongestWord) {
  const auto model = token_model_of(wordpiece());
  EXPECT_EQ(ids_of(*model, "abbb"), (Ids{2, 3, 3}));
  EXPECT_EQ(ids_of(*model, "abbbb"), (Ids{0}));
  EXPECT_EQ(ids_of(*model, "abbc"), (Ids{2, 4}));
}

TEST(TokenModel, ReadsFilesWithoutType) {
  for (json section : {bpe(), unigram(), wordpiece(), word_level()}) {
    const auto expected = ids_of(*token_model_of(section), "ab");
    section.erase("type");
    EXPECT_EQ(ids_of(*token_model_of(section), "ab"), expected) << section;
  }
}

TEST(TokenModel, FindsWordsOfBytesInTheFilesAlphabet) {
  const std::string space = "\xc4\xa0"; // U+0120
  const json section = {
      {"type", "BPE"},
      {"vocab",
       {{space, 0}, {"a", 1}, {space + "a", 2}, {"\xc3\xa9", 3}, {"b", 5}}},
      {"merges", {space + " a"}}};
  const auto model = token_model_of(section, true);
  const auto cache = model->make_cache();
  using Tokens = std::vector<std::vector<uint32_t>>;
  EXPECT_EQ(
      tokens_of(*model, "b a\xe9", *cache),
      (Tokens{{5, 0, 1}, {2, 1, 3}, {3, 3, 4}}));
  EXPECT_EQ(model->find(space + "a"), 2U);
  EXPECT_EQ(model->find(" a"), std::nullopt);
}

// Words are divided at spaces before they are looked up, where that changes
// nothing; a token across a space shows that it is not done there.
TEST(TokenModel, MergesAcrossSpacesIfATokenHasOne) {
  const std::string space = "\xe2\x96\x81"; // U+2581
  json section = {
      {"type", "BPE"},
      {"vocab", {{space, 0}, {"a", 1}, {space + "a", 2}, {"a" + space, 3}}},
      {"merges", {space + " a"}}};
  const std::string word = space + "a" + space + "a" + space + space + "a";
  EXPECT_EQ(ids_of(*token_model_of(section), word), (Ids{2, 2, 0, 2}));
  section["merges"] = {"a " + space, space + " a"};
  EXPECT_EQ(ids_of(*token_model_of(section), word), (Ids{0, 3, 3, 2}));
}

TEST(TokenModel, ServesSeveralThreads) {
  const auto model = token_model_of(bpe());
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (int& count : right) {
    threads.emplace_back([&] {
      const auto cache = model->make_cache();
      for (int i = 0; i < 1000; ++i) {
        const std::string word = "abc" + std::string(i % 90, 'x');
        count += tokens_of(*model, word, *cache).size() == 1U + i % 90;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, std::vector<int>(4, 1000));
}

TEST(TokenModel, RefusesAnotherModelsCache) {
  const auto model = token_model_of(bpe());
  const auto other = token_model_of(unigram())->make_cache();
  expect_error(
      [&] { tokens_of(*model, "a", *other); }, {"cache", "make_cache()"});
}

TEST(TokenModel, NamesWhatIsWrong) {
  struct Case {
    json section;
    std::vector<const char*> in_message;
  };
  const std::vector<Case> cases = {
      {changed(bpe(), "type", "BP"), {"'type'", "\"BP\"", "WordPiece"}},
      {json::object(), {"'type'"}},
      {changed(bpe(), "dropout", 0.1), {"'dropout'", "0.1", "at random"}},
      {changed(bpe(), "merges", {"a b", "b"}), {"'merges'[1]", "two tokens"}},
      {changed(bpe(), "merges", {"a b c"}), {"'merges'[0]", "two tokens"}},
      {changed(bpe(), "merges", {{"a", "b", "c"}}), {"'merges'[0]"}},
      {changed(bpe(), "merges", {"a z"}), {"'merges'[0]", "lacks 'z'"}},
      {changed(bpe(), "merges", {"c b"}), {"'merges'[0]", "lacks 'cb'"}},
      {changed(bpe(), "vocab", {{"a", "1"}}), {"'vocab': 'a'", "integer"}},
      {changed(bpe(), "vocab", {{"a", 1.5}}), {"'vocab': 'a'", "1.5"}},
      {changed(bpe(), "vocab", {{"a", -1}}), {"'vocab': 'a'", "-1"}},
      {changed(bpe(), "vocab", {{"a", 2147483648U}}),
       {"'vocab': 'a'", "2147483648"}},
      {changed(bpe(), "vocab", {{"a", 1}, {"b", 1}}),
       {"'vocab'", "'a'", "'b'", "id 1"}},
      {changed(bpe(), "vocab", json::object()), {"'vocab'"}},
      {changed(unigram(), "vocab", json::array()), {"'vocab'"}},
      {changed(unigram(), "vocab", json::parse(R"([["a", 0], ["b", null]])")),
       {"'vocab'[1]", "finite"}},
      {changed(unigram(), "vocab", json::array({json::array({"a", NAN})})),
       {"'vocab'[0]"}},
      {changed(unigram(), "vocab", json::parse(R"([["a", 0], ["a", 0]])")),
       {"'vocab'", "'a' appears twice"}},
      {changed(unigram(), "unk_id", 6), {"'unk_id'", "6", "to 5"}},
      {changed(wordpiece(), "max_input_chars_per_word", -1),
       {"'max_input_chars_per_word'"}},
      {changed(wordpiece(), "unk_token", nullptr), {"'unk_token'"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.section.dump());
    try {
      token_model_of(one.section);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string message = error.what();
      for (const char* part : one.in_message) {
        EXPECT_NE(message.find(part), std::string::npos)
            << part << " not in " << message;
      }
    }
  }
}

TEST(TokenModel, ReadsOrRefusesAnyValue) {
  int read = 0;
  int refused = 0;
  for (const json& right : {bpe(), unigram(), wordpiece(), word_level()}) {
    for_each_change(
        right,
        hostile_values(),
        [&](const std::string& /*key*/, const std::string& text) {
          SCOPED_TRACE(text);
          try {
            const json section = runtime::parse_json(text, "tokenizer.json");
            const auto model = token_model_of(section);
            for (const char* word : {"abc", "xab", "<unk>"}) {
              try {
                for (const uint32_t id : ids_of(*model, word)) {
                  EXPECT_LT(id, model->size());
                }
              } catch (const Error&) { // a missing unknown token
              }
            }
            ++read;
          } catch (const Error&) {
            ++refused;
          }
        });
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 500);
}

} // namespace tessera::text::token_model_test

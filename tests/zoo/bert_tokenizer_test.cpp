// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::zoo::bert_tokenizer_test {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr const char* kSmallVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##b\nab\n##c\n";

BertTokenizer small_tokenizer() {
  const TemporaryFolder folder;
  runtime::write_file_atomically(folder / "vocab.txt", kSmallVocabulary);
  return BertTokenizer::from_folder(folder.path());
}

std::string text_of(const nlohmann::json& item) {
  if (item.contains("text")) {
    return item.at("text").get<std::string>();
  }
  const std::string hex = item.at("hex").get<std::string>();
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

} // namespace

TEST(BertTokenizer, GivesTheIdsOfTheReference) {
  const nlohmann::json reference = read_json(fixture("bert_tokenizer.json"));
  const auto plain = BertTokenizer::from_folder(minilm_folder());
  for (const auto& group : reference.at("groups")) {
    BertTokenizerOptions options = plain.options();
    const auto& changed = group.at("options");
    options.text.lower_case = changed.value("do_lower_case", true);
    options.text.strip_accents =
        changed.value("strip_accents", options.text.lower_case);
    options.text.split_chinese = changed.value("tokenize_chinese_chars", true);
    const BertTokenizer tokenizer(plain.vocabulary(), options);
    for (const auto& item : group.at("cases")) {
      EXPECT_EQ(tokenizer.ids(text_of(item)), item.at("ids").get<Ids>())
          << changed << " " << item.dump();
    }
  }
}

TEST(BertTokenizer, CutsPairsAsTheReference) {
  const nlohmann::json reference = read_json(fixture("bert_tokenizer.json"));
  const auto tokenizer = BertTokenizer::from_folder(minilm_folder());
  for (const auto& item : reference.at("pairs")) {
    const Encoding encoding = tokenizer.encode_pair(
        item.at("first").get<std::string>(),
        item.at("second").get<std::string>(),
        {.max_length = item.at("max_length").get<std::int64_t>()});
    EXPECT_EQ(encoding.input_ids, item.at("ids").get<Ids>()) << item.dump();
    EXPECT_EQ(encoding.token_type_ids, item.at("types").get<Ids>())
        << item.dump();
    EXPECT_EQ(encoding.attention_mask, Ids(encoding.input_ids.size(), 1));
  }
}

TEST(BertTokenizer, ReadsEitherVocabularyFile) {
  const std::string text = "Caf\u00e9 [MASK] unaffable";
  const auto both = BertTokenizer::from_folder(minilm_folder());
  EXPECT_EQ(both.vocabulary().size(), 30522);
  EXPECT_EQ(both.options().model_max_length, 512);
  for (const char* kept : {"vocab.txt", "tokenizer.json"}) {
    const TemporaryFolder folder;
    std::filesystem::copy(minilm_folder() / kept, folder / kept);
    const auto one = BertTokenizer::from_folder(folder.path());
    EXPECT_EQ(one.vocabulary().size(), 30522) << kept;
    EXPECT_EQ(one.ids(text), both.ids(text)) << kept;
  }
}

TEST(BertTokenizer, ObeysTokenizerConfig) {
  const TemporaryFolder folder;
  runtime::write_file_atomically(
      folder / "vocab.txt", std::string(kSmallVocabulary) + "A\n");
  runtime::write_file_atomically(
      folder / "tokenizer_config.json",
      R"({"do_lower_case": false, "model_max_length": 1e30,
          "mask_token": {"content": "[B]"},
          "added_tokens_decoder": {"11": {"content": "[B]", "special": true}}})");
  const auto tokenizer = BertTokenizer::from_folder(folder.path());
  EXPECT_FALSE(tokenizer.options().text.strip_accents);
  EXPECT_EQ(tokenizer.options().model_max_length, 0);
  EXPECT_EQ(tokenizer.ids("A a[B]abc"), (Ids{10, 5, 11, 8, 9}));
}

TEST(BertTokenizer, EncodesCutsAndPads) {
  const auto tokenizer = small_tokenizer();
  const Encoding one = tokenizer.encode("a b abb", {.max_length = 5});
  EXPECT_EQ(one.input_ids, (Ids{2, 5, 6, 8, 3}));
  const Encoding plain = tokenizer.encode("a", {.add_special_tokens = false});
  EXPECT_EQ(plain.input_ids, Ids{5});

  const EncodedBatch batch = tokenizer.pad({one, plain}, {.multiple_of = 4});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.length, 8);
  EXPECT_EQ(
      batch.input_ids, (Ids{2, 5, 6, 8, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(
      batch.attention_mask,
      (Ids{1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.token_type_ids, Ids(16, 0));
  EXPECT_EQ(tokenizer.pad({}).input_ids, Ids{});
  expect_error(
      [&] { tokenizer.pad({one}, {.length = 4}); }, {"max_length = 4"});
  expect_error(
      [&] { tokenizer.encode("a", {.max_length = 1}); }, {"max_length is 1"});
}

// Random bytes: no crash, only ids of the vocabulary.
TEST(BertTokenizer, SurvivesAnyBytes) {
  const auto tokenizer = BertTokenizer::from_folder(minilm_folder());
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    for (const std::int64_t id : tokenizer.ids(bytes)) {
      ASSERT_FALSE(tokenizer.vocabulary().token(id).empty());
    }
  }
}

TEST(BertTokenizer, NamesWhatIsWrongWithAFolder) {
  struct Case {
    std::vector<std::pair<std::string, std::string>> files;
    const char* in_message;
  };
  const std::string good = kSmallVocabulary;
  const std::vector<Case> cases = {
      {{}, "a BERT folder needs it, or a tokenizer.json"},
      {{{"vocab.txt", ""}}, "holds no tokens"},
      {{{"vocab.txt", "[PAD]\n[CLS]\n[SEP]\n"}}, "'[UNK]'"},
      {{{"vocab.txt", "[PAD]\n[UNK]\n[SEP]\n"}}, "'[CLS]'"},
      {{{"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n"}}, "'[SEP]'"},
      {{{"vocab.txt", "[UNK]\n[CLS]\n[SEP]\n"}}, "'[PAD]'"},
      {{{"vocab.txt", good + "b\n"}}, "lines 7 and 11"},
      {{{"vocab.txt", good + "\nd\n"}}, "line 11"},
      {{{"vocab.txt", good}, {"tokenizer_config.json", "{"}},
       "tokenizer_config.json:1:"},
      {{{"vocab.txt", good}, {"tokenizer_config.json", "[]"}},
       "not a JSON object"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"do_lower_case": "yes"})"}},
       "do_lower_case"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})"}},
       "T5Tokenizer"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {}}})"}},
       "'x'"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json",
         R"({"added_tokens_decoder": {"10": {"content": "d",
             "normalized": true}}})"}},
       "normalized=False"},
      {{{"tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}}})"}},
       "'BPE'"},
      {{{"tokenizer.json", R"({"model": {"vocab": {"[PAD]": 1}}})"}},
       "has the id 0"},
      {{{"tokenizer.json", R"({"model": {"vocab": {"[PAD]": "x"}}})"}},
       "not an integer"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.in_message);
    const TemporaryFolder folder;
    for (const auto& [name, content] : one.files) {
      runtime::write_file_atomically(folder / name, content);
    }
    expect_error(
        [&] { BertTokenizer::from_folder(folder.path()); }, {one.in_message});
  }
  expect_error(
      [] { BertTokenizer::from_folder("/nonexistent"); }, {"does not exist"});
}

} // namespace tessera::zoo::bert_tokenizer_test

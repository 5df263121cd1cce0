// SPDX-License-Identifier: Apache-2.0
// Tokenizers of folders: which files count, and what is wrong with them.
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::text::tokenizer_files_test {
namespace {

using Ids = std::vector<int64_t>;

constexpr const char* kSmallVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##b\nab\n##c\n";

Tokenizer small_tokenizer() {
  const TemporaryFolder folder;
  runtime::write_file_atomically(folder / "vocab.txt", kSmallVocabulary);
  return Tokenizer::from_folder(folder.path());
}

std::string text_of(const nlohmann::json& item) {
  if (item.contains("text")) {
    return item.at("text").get<std::string>();
  }
  const std::string hex = item.at("hex").get<std::string>();
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

Ids types_of(const Encoding& encoding) {
  Ids types;
  for (const PlacedToken& token : encoding.tokens) {
    types.push_back(token.type_id);
  }
  return types;
}

} // namespace

TEST(TokenizerFiles, BertGivesTheIdsOfTransformers) {
  const nlohmann::json reference = read_json(fixture("bert_tokenizer.json"));
  for (const auto& group : reference.at("groups")) {
    const TemporaryFolder folder;
    std::filesystem::copy(minilm_folder() / "vocab.txt", folder / "vocab.txt");
    nlohmann::json config = group.at("options");
    config["tokenizer_class"] = "BertTokenizer";
    runtime::write_file_atomically(
        folder / "tokenizer_config.json", config.dump());
    const auto tokenizer = Tokenizer::from_folder(folder.path());
    for (const auto& item : group.at("cases")) {
      EXPECT_EQ(tokenizer.ids(text_of(item)), item.at("ids").get<Ids>())
          << config << " " << item.dump();
    }
  }
}

TEST(TokenizerFiles, PairsAreTruncatedAsInTransformers) {
  const nlohmann::json reference = read_json(fixture("bert_tokenizer.json"));
  const auto tokenizer = Tokenizer::from_folder(minilm_folder());
  for (const auto& item : reference.at("pairs")) {
    const Encoding encoding = tokenizer.encode_pair(
        item.at("first").get<std::string>(),
        item.at("second").get<std::string>(),
        {.truncation = {.max_length = item.at("max_length").get<int64_t>()}});
    EXPECT_EQ(encoding.ids(), item.at("ids").get<Ids>()) << item.dump();
    EXPECT_EQ(types_of(encoding), item.at("types").get<Ids>()) << item.dump();
  }
}

TEST(TokenizerFiles, EitherVocabularyFileWillDo) {
  const std::string text = "Caf\u00e9 [MASK] unaffable";
  const auto both = Tokenizer::from_folder(minilm_folder());
  EXPECT_EQ(both.size(), 30522);
  EXPECT_EQ(both.settings().model_max_length, 512);
  for (const char* kept : {"vocab.txt", "tokenizer.json"}) {
    const TemporaryFolder folder;
    std::filesystem::copy(minilm_folder() / kept, folder / kept);
    const auto one = Tokenizer::from_folder(folder.path());
    EXPECT_EQ(one.size(), 30522) << kept;
    EXPECT_EQ(one.encode(text).ids(), both.encode(text).ids()) << kept;
    EXPECT_EQ(one.decode(one.ids(text)), "cafe [MASK] unaffable") << kept;
  }
}

TEST(TokenizerFiles, HaveSidesOfPaddingAndTruncation) {
  const TemporaryFolder folder;
  auto document = nlohmann::json::parse(
      runtime::read_text_file(fixture("tokenizers") / "llama2.json"));
  const auto sides = [&](const nlohmann::json& config) {
    runtime::write_file_atomically(folder / "tokenizer.json", document.dump());
    runtime::write_file_atomically(
        folder / "tokenizer_config.json", config.dump());
    const auto tokenizer = Tokenizer::from_folder(folder.path());
    const auto ids = tokenizer.encode(
        "one two three four",
        {.truncation = {.max_length = 2}, .add_special_tokens = false});
    const auto all = tokenizer.ids("one two three four");
    const bool keeps_end = ids.ids() == decltype(all)(all.end() - 2, all.end());
    EXPECT_EQ(keeps_end, tokenizer.settings().truncation_side == Side::kLeft);
    return std::pair(
        tokenizer.settings().padding_side,
        tokenizer.settings().truncation_side);
  };
  const auto left = Side::kLeft;
  const auto right = Side::kRight;
  EXPECT_EQ(sides(nlohmann::json::object()), std::pair(right, right));
  EXPECT_EQ(sides({{"truncation_side", "left"}}), std::pair(right, left));
  document["truncation"] = {
      {"direction", "Left"},
      {"max_length", 8},
      {"strategy", "LongestFirst"},
      {"stride", 0}};
  document["padding"] = {{"direction", "Left"}};
  EXPECT_EQ(sides(nlohmann::json::object()), std::pair(left, left));
  EXPECT_EQ(
      sides({{"truncation_side", "right"}, {"padding_side", "right"}}),
      std::pair(right, right));
}

TEST(TokenizerFiles, TokenizerConfigOverrules) {
  const TemporaryFolder folder;
  runtime::write_file_atomically(
      folder / "vocab.txt", std::string(kSmallVocabulary) + "A\n");
  runtime::write_file_atomically(
      folder / "tokenizer_config.json",
      R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false,
          "model_max_length": 1e30, "padding_side": "left",
          "chat_template": "{{ messages }}",
          "mask_token": {"content": "[B]"},
          "added_tokens_decoder": {"11": {"content": "[B]", "special": true}}})");
  const auto tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.settings().model_max_length, 0);
  EXPECT_EQ(tokenizer.settings().padding_side, Side::kLeft);
  EXPECT_EQ(tokenizer.settings().chat_template, "{{ messages }}");
  EXPECT_EQ(tokenizer.special_id("mask_token"), 11);
  EXPECT_EQ(tokenizer.special_id("eos_token"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(11));
  EXPECT_EQ(tokenizer.ids("A a[B]abc"), (Ids{10, 5, 11, 8, 9}));
}

TEST(TokenizerFiles, TextsAreTruncatedAndPadded) {
  const auto tokenizer = small_tokenizer();
  const Encoding one =
      tokenizer.encode("a b abb", {.truncation = {.max_length = 5}});
  EXPECT_EQ(one.ids(), (Ids{2, 5, 6, 8, 3}));
  EXPECT_TRUE(one.is_truncated);
  const Encoding plain = tokenizer.encode("a", {.add_special_tokens = false});
  EXPECT_EQ(plain.ids(), Ids{5});

  const EncodedBatch batch = tokenizer.pad({one, plain}, {.multiple_of = 4});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.length, 8);
  EXPECT_EQ(
      batch.input_ids, (Ids{2, 5, 6, 8, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(
      batch.attention_mask,
      (Ids{1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.token_type_ids, Ids(16, 0));
  EXPECT_EQ(
      tokenizer.pad({one, plain}, {.side = Side::kLeft}).input_ids,
      (Ids{2, 5, 6, 8, 3, 0, 0, 0, 0, 5}));
  EXPECT_EQ(tokenizer.pad({}).input_ids, Ids{});
  expect_error(
      [&] { tokenizer.pad({one}, {.length = 4}); }, {"5 tokens", "to 4"});
  expect_error(
      [&] { tokenizer.encode("a", {.truncation = {.max_length = 1}}); },
      {"max_length is 1", "adds 2 special tokens"});
}

// Random bytes: no crash, only ids of the vocabulary.
TEST(TokenizerFiles, TextsMayHaveAnyBytes) {
  const auto tokenizer = Tokenizer::from_folder(minilm_folder());
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    for (const int64_t id : tokenizer.ids(bytes)) {
      ASSERT_FALSE(tokenizer.token(id).empty());
    }
  }
}

TEST(TokenizerFiles, NamesWhatIsWrongWithAFolder) {
  struct Case {
    std::vector<std::pair<std::string, std::string>> files;
    const char* in_message;
  };
  const std::string good = kSmallVocabulary;
  const std::vector<Case> cases = {
      {{}, "has no tokenizer"},
      {{{"vocab.txt", ""}}, "holds no tokens"},
      {{{"vocab.txt", "[PAD]\n[CLS]\n[SEP]\n"}}, "[UNK]"},
      {{{"vocab.txt", "[PAD]\n[UNK]\n[SEP]\n"}}, "'[CLS]'"},
      {{{"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n"}}, "'[SEP]'"},
      {{{"vocab.txt", good + "b\n"}}, "lines 7 and 11"},
      {{{"vocab.txt", good + "\nd\n"}}, "line 11"},
      {{{"vocab.txt", good}, {"tokenizer_config.json", "{"}},
       "tokenizer_config.json:1:"},
      {{{"vocab.txt", good}, {"tokenizer_config.json", "[]"}},
       "not a JSON object"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json",
         R"({"tokenizer_class": "BertTokenizer", "do_lower_case": "yes"})"}},
       "do_lower_case"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"padding_side": "top"})"}},
       "'padding_side' is 'top'"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {}}})"}},
       "'x'"},
      {{{"vocab.txt", good},
        {"tokenizer_config.json", R"({"added_tokens_decoder": {"10": {}}})"}},
       "'content'"},
      {{{"tokenizer.json", R"({"model": {"type": "Magic", "vocab": {}}})"}},
       "\"Magic\""},
      {{{"tokenizer.json",
         R"({"model": {"type": "WordLevel", "unk_token": "a",
             "vocab": {"[PAD]": "x"}}})"}},
       "[PAD]"},
      {{{"vocab.json", R"({"a": 0})"}}, "has no tokenizer"},
      {{{"vocab.json", R"({"a": 0})"}, {"merges.txt", "a b\n"}}, "'b'"},
      {{{"tokenizer.model", "no protocol buffer"}}, "tokenizer.model"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.in_message);
    const TemporaryFolder folder;
    for (const auto& [name, content] : one.files) {
      runtime::write_file_atomically(folder / name, content);
    }
    expect_error(
        [&] { Tokenizer::from_folder(folder.path()); }, {one.in_message});
  }
  expect_error(
      [] { Tokenizer::from_folder("/nonexistent"); }, {"does not exist"});
}

} // namespace tessera::text::tokenizer_files_test

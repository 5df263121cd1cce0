// SPDX-License-Identifier: Apache-2.0
// Folders without a tokenizer.json are read as their class in transformers
// does: tests/fixture_makers/tokenizer_classes.py made the folders and asked
// it.
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::text::tokenizer_classes_test {
namespace {

using Ids = std::vector<int64_t>;
using Files = std::vector<std::pair<std::string, std::string>>;

const nlohmann::json& document() {
  static const nlohmann::json cases =
      read_json(fixture("tokenizer_classes/cases.json"));
  return cases;
}

/// What the version of transformers that a case follows gives.
const nlohmann::json& expected(const std::string& name) {
  const auto follows =
      document().at("cases").at(name).at("follows").get<std::string>();
  return document()
      .at("results")
      .at(follows.empty() ? "5" : follows)
      .at("cases")
      .at(name);
}

Tokenizer tokenizer_of(const std::string& name) {
  const TemporaryFolder folder;
  const nlohmann::json& description = document().at("cases").at(name);
  for (const auto& [file, source] : description.at("vocabulary").items()) {
    std::filesystem::copy(
        fixture("tokenizer_classes") / source.get<std::string>(),
        folder / file);
  }
  for (const auto& [file, content] : description.at("files").items()) {
    runtime::write_file_atomically(folder / file, content.dump());
  }
  return Tokenizer::from_folder(folder.path());
}

Tokenizer tokenizer_with(const Files& files) {
  const TemporaryFolder folder;
  for (const auto& [name, content] : files) {
    runtime::write_file_atomically(folder / name, content);
  }
  return Tokenizer::from_folder(folder.path());
}

std::string model_file(const std::string& name) {
  return runtime::read_text_file(fixture("tokenizer_classes/" + name));
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, description] : document().at("cases").items()) {
    names.push_back(name);
  }
  return names;
}

class FolderOfClass : public ::testing::TestWithParam<std::string> {};

} // namespace

TEST_P(FolderOfClass, GivesTheIdsOfTransformers) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const nlohmann::json& results = expected(GetParam());
  const auto texts = document().at("texts").get<std::vector<std::string>>();
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i]).ids(), results.at("ids")[i].get<Ids>())
        << nlohmann::json(texts[i]);
  }
  const nlohmann::json& pairs = document().at("pairs");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Encoding both = tokenizer.encode_pair(
        pairs[i][0].get<std::string>(), pairs[i][1].get<std::string>());
    EXPECT_EQ(both.ids(), results.at("pairs")[i][0].get<Ids>()) << pairs[i];
    Ids types;
    for (const PlacedToken& token : both.tokens) {
      types.push_back(token.type_id);
    }
    if (results.at("pairs")[i].size() > 1) {
      EXPECT_EQ(types, results.at("pairs")[i][1].get<Ids>()) << pairs[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    FolderOfClass,
    ::testing::ValuesIn(case_names()),
    [](const auto& test) { return test.param; });

TEST(TokenizerClasses, OptTextsBeginWithTheBosToken) {
  const Files files{
      {"vocab.json", R"({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3})"},
      {"merges.txt", "#version: 0.2\na b\n"},
      {"config.json", R"({"model_type": "opt"})"},
      {"tokenizer_config.json",
       R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
           "bos_token": "<|endoftext|>"})"}};
  EXPECT_EQ(tokenizer_with(files).encode("ab").ids(), (Ids{0, 3}));
  const Files without(files.begin(), files.end() - 1);
  EXPECT_EQ(tokenizer_with(without).encode("ab").ids(), (Ids{3}));
}

TEST(TokenizerClasses, ConfigJsonMakesARoberta) {
  const Files files{
      {"vocab.json",
       R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5,
           "ab": 6, "<mask>": 7})"},
      {"merges.txt", "a b\n"},
      {"config.json", R"({"model_type": "roberta"})"},
      {"tokenizer_config.json", R"({"model_max_length": 512})"}};
  const auto tokenizer = tokenizer_with(files);
  EXPECT_EQ(tokenizer.encode("ab<mask>").ids(), (Ids{0, 6, 7, 2}));
  EXPECT_EQ(tokenizer.encode_pair("a", "b").ids(), (Ids{0, 4, 2, 2, 5, 2}));
  EXPECT_EQ(tokenizer.special_id("pad_token"), 1);
}

TEST(TokenizerClasses, CasedVocabulariesStayCased) {
  const Files files{
      {"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nHello\n"},
      {"tokenizer_config.json", R"({"do_lower_case": false})"}};
  EXPECT_EQ(tokenizer_with(files).encode("Hello").ids(), (Ids{2, 6, 3}));
  Files typed = files;
  typed.emplace_back("config.json", R"({"model_type": "bert"})");
  EXPECT_EQ(tokenizer_with(typed).encode("Hello").ids(), (Ids{2, 6, 3}));
}

TEST(TokenizerClasses, AddedTokensJsonIsRead) {
  const Files files{
      {"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n"},
      {"added_tokens.json", R"({"[gMASK]": 6, "[sMASK]": 7})"},
      {"tokenizer_config.json",
       R"({"additional_special_tokens": ["[gMASK]"]})"}};
  const auto tokenizer = tokenizer_with(files);
  EXPECT_EQ(
      tokenizer.encode("hello[gMASK][sMASK]").ids(), (Ids{2, 5, 6, 7, 3}));
  EXPECT_EQ(tokenizer.id_of("[sMASK]"), 7);
  EXPECT_EQ(tokenizer.size(), 8);
  EXPECT_TRUE(tokenizer.is_special(6));
  EXPECT_FALSE(tokenizer.is_special(7));
}

// Ids of transformers 4.57.6 and 5.24.0, from the same files.
TEST(TokenizerClasses, AddedTokensFollowTheVocabularyInTheOrderOfTheirIds) {
  const auto ids_with = [](const char* file, const char* content) {
    return tokenizer_with({{"vocab.txt", model_file("vocab.txt")},
                           {"config.json", R"({"model_type": "bert"})"},
                           {file, content}})
        .encode("a [ENT] b [TWO] Hello")
        .ids();
  };
  const char* added = "added_tokens.json";
  const Ids one{2, 14, 45, 15, 35, 19, 36, 5, 3};
  EXPECT_EQ(ids_with(added, R"({"[ENT]": 5})"), one); // another token's id
  EXPECT_EQ(ids_with(added, R"({"[ENT]": 48})"), one);
  const Ids both{2, 14, 46, 15, 45, 5, 3};
  EXPECT_EQ(ids_with(added, R"({"[ENT]": 50, "[TWO]": 47})"), both);
  EXPECT_EQ(ids_with(added, R"({"[ENT]": 100, "[TWO]": 99})"), both);
  const char* config = "tokenizer_config.json";
  EXPECT_EQ(
      ids_with(
          config,
          R"({"added_tokens_decoder": {
                "100": {"content": "[ENT]", "special": true},
                "99": {"content": "[TWO]", "special": true}}})"),
      both);
  expect_error(
      [&] { ids_with(added, R"({"[ENT]": 45, "[TWO]": 45})"); },
      {"added_tokens.json", "'[ENT]' and '[TWO]'", "45"});
}

// Likewise; a space stands before an added token only if the text has one.
TEST(TokenizerClasses, LlamaTextsThatAreNotLegacyHaveOnePrefix) {
  const auto ids_with = [](bool strips, const std::string& text) {
    const nlohmann::json config = {
        {"tokenizer_class", "LlamaTokenizer"},
        {"legacy", false},
        {"added_tokens_decoder",
         {{"400",
           {{"content", "[ENT]"},
            {"lstrip", strips},
            {"rstrip", strips},
            {"normalized", true},
            {"single_word", false},
            {"special", false}}}}}};
    return tokenizer_with({{"tokenizer.model", model_file("llama.model")},
                           {"config.json", R"({"model_type": "llama"})"},
                           {"tokenizer_config.json", config.dump()}})
        .encode(text)
        .ids();
  };
  EXPECT_EQ(ids_with(false, "a [ENT] b"), (Ids{1, 262, 328, 400, 263}));
  EXPECT_EQ(ids_with(false, "x[ENT]y"), (Ids{1, 328, 362, 400, 363}));
  EXPECT_EQ(ids_with(false, " [ENT] "), (Ids{1, 328, 400, 328}));
  EXPECT_EQ(ids_with(false, "[ENT]a"), (Ids{1, 400, 332}));
  EXPECT_EQ(ids_with(true, "a [ENT] b"), (Ids{1, 262, 400, 344}));
  EXPECT_EQ(ids_with(true, " [ENT] "), (Ids{1, 400}));
}

TEST(TokenizerClasses, PegasusHasNoAddedTokensWithoutAName) {
  const auto tokenizer_with_files = [](const char* file, const char* content) {
    return tokenizer_with(
        {{"spiece.model", model_file("t5.model")},
         {"config.json", R"({"model_type": "pegasus"})"},
         {file, content}});
  };
  expect_error(
      [&] { tokenizer_with_files("added_tokens.json", R"({"[ENT]": 208})"); },
      {"PegasusTokenizer", "'[ENT]'", "save_pretrained"});
  // One of its own, and one with a name.
  tokenizer_with_files("added_tokens.json", R"({"<mask_1>": 2})");
  const auto named = tokenizer_with_files(
      "tokenizer_config.json", R"({"additional_special_tokens": ["[ENT]"]})");
  EXPECT_EQ(named.encode("a [ENT] b").ids(), (Ids{128, 208, 143, 1}));
}

// config.json's are the model's, as in both versions of transformers.
TEST(TokenizerClasses, SpecialTokensOfConfigJsonAreNotTheTokenizers) {
  const auto tokenizer = tokenizer_with(
      {{"tokenizer.model", model_file("llama.model")},
       {"config.json",
        R"({"model_type": "llama", "eos_token": "a", "eos_token_id": 5})"}});
  EXPECT_EQ(tokenizer.special_id("eos_token"), tokenizer.id_of("</s>"));
}

// Texts of transformers 5.24.0, and but for BPE of 4.57.6.
TEST(TokenizerClasses, SpacesAreCleanedUpWhereTheFileSaysSo) {
  struct Case {
    Files vocabulary;
    const char* type;
    std::vector<std::string> as_they_are;
    std::vector<std::string> cleaned;
  };
  const std::vector<std::string> texts{
      "Hello , do not stop !", "don ' t", "it 's . we 've"};
  const std::vector<Case> cases = {
      {{{"vocab.txt", model_file("vocab.txt")}},
       "bert",
       {"hello, [UNK] [UNK] stop!", "don ' t", "it ' [UNK]. [UNK] ' [UNK]"},
       {"hello, [UNK] [UNK] stop!", "don't", "it'[UNK]. [UNK]'[UNK]"}},
      {{{"spiece.model", model_file("t5.model")}},
       "t5",
       texts,
       {"Hello, do not stop!", "don't", "it's. we've"}},
      {{{"tokenizer.model", model_file("llama.model")}},
       "llama",
       texts,
       texts}};
  for (const Case& expected : cases) {
    for (const char* cleans : {"null", "false", "true"}) {
      SCOPED_TRACE(std::string(expected.type) + " " + cleans);
      Files files = expected.vocabulary;
      files.emplace_back(
          "config.json", nlohmann::json{{"model_type", expected.type}}.dump());
      files.emplace_back(
          "tokenizer_config.json",
          std::string(R"({"clean_up_tokenization_spaces": )") + cleans + "}");
      const auto tokenizer = tokenizer_with(files);
      const bool is_cleaned = cleans == std::string("true");
      for (size_t i = 0; i < texts.size(); ++i) {
        const std::string& text =
            (is_cleaned ? expected.cleaned : expected.as_they_are)[i];
        const Ids ids = tokenizer.ids(texts[i]);
        EXPECT_EQ(tokenizer.decode(ids), text);
        DecodeStream stream(tokenizer, /*skip_special_tokens=*/false);
        std::string streamed;
        for (const int64_t id : ids) {
          streamed += stream.add(id);
        }
        EXPECT_EQ(streamed + stream.finish(), text);
      }
    }
  }
}

// Spaces are dropped at the beginning of a text (remove_extra_whitespaces), and
// not between its words.
TEST(TokenizerClasses, StreamsKeepSpacesBetweenWords) {
  const auto tokenizer = tokenizer_with(
      {{"spiece.model", model_file("t5.model")},
       {"config.json", R"({"model_type": "t5"})"}});
  const int64_t space = tokenizer.id_of("\u2581").value();
  const Ids words = tokenizer.encode("a b").ids();
  const Ids ids{
      space, space, words[0], space, space, words[1], space, words[0], space};
  const std::string text = tokenizer.decode(ids);
  EXPECT_NE(text.find("   "), std::string::npos) << text;
  DecodeStream stream(tokenizer, /*skip_special_tokens=*/false);
  std::string streamed;
  for (const int64_t id : ids) {
    streamed += stream.add(id);
  }
  EXPECT_EQ(streamed + stream.finish(), text);
}

TEST(TokenizerClasses, KeysThatAreNotKnownAreNamedOnce) {
  const auto log_of = [](const std::string& config) {
    ::testing::internal::CaptureStderr();
    tokenizer_with(
        {{"vocab.txt", model_file("vocab.txt")},
         {"tokenizer_config.json", config}});
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(
      log_of(
          R"({"do_lower_case": false, "model_max_length": 512, "tokenizer_class":
              "BertTokenizer", "unk_token": "[UNK]", "name_or_path": "x",
              "never_split": null, "truncation_side": "right", "_own": 1,
              "split_special_tokens": false, "clean_up_tokenization_spaces":
              true, "image_token": "[ENT]", "max_length": 128,
              "additional_special_tokens": ["[ENT]"]})"),
      "");
  const std::string log = log_of(
      R"({"tokenizer_class": "BertTokenizer", "boundary": 3, "image_token": "<image>"})");
  for (const char* part :
       {"tokenizer_config.json",
        "ignored, because it is not implemented",
        "boundary=3",
        "image_token=\"<image>\""}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << ": " << log;
  }
}

TEST(TokenizerClasses, ModelsOfSentencePieceAreT5sByModelType) {
  const auto tokenizer = tokenizer_of("t5_by_model_type");
  const auto first = tokenizer.id_of("<extra_id_0>");
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*first, tokenizer.size() - 1);
  EXPECT_EQ(tokenizer.id_of("<extra_id_99>"), *first - 99);
  EXPECT_EQ(tokenizer.encode("<extra_id_0>").ids(), (Ids{*first, 1}));
}

TEST(TokenizerClasses, ChatGlmTextsBeginWithItsPrefix) {
  const auto tokenizer = tokenizer_of("chatglm");
  const Ids ids = tokenizer.encode("<|user|>").ids();
  EXPECT_EQ(
      ids,
      (
          Ids{*tokenizer.id_of("[gMASK]"),
              *tokenizer.id_of("sop"),
              *tokenizer.id_of("<|user|>")}));
  EXPECT_EQ(ids[1], ids[0] + 2);
  EXPECT_EQ(tokenizer.settings().padding_side, Side::kLeft);
  EXPECT_EQ(tokenizer.special_id("pad_token"), 0);
}

// The mask token of RoBERTa takes the space before it.
TEST(TokenizerClasses, SpaceBeforeAMaskBelongsToIt) {
  const auto tokenizer = tokenizer_of("roberta_by_model_type");
  EXPECT_EQ(tokenizer.ids("a <mask>"), tokenizer.ids("a<mask>"));
}

TEST(TokenizerClasses, SuffixModelsKeepTheLastSpace) {
  const auto tokenizer =
      Tokenizer::from_file(fixture("tokenizer_classes/suffix.model"));
  const auto texts = document().at("texts").get<std::vector<std::string>>();
  const nlohmann::json& suffix = document().at("suffix");
  for (size_t i = 0; i < texts.size(); ++i) {
    const Ids ids = tokenizer.ids(texts[i]);
    EXPECT_EQ(ids, suffix.at("ids")[i].get<Ids>()) << texts[i];
    EXPECT_EQ(tokenizer.decode(ids), suffix.at("texts")[i]) << texts[i];
  }
}

TEST(TokenizerClasses, FilesTellPlainModelsFromClasses) {
  const std::string model = model_file("llama.model");
  const auto plain = tokenizer_with({{"tokenizer.model", model}});
  EXPECT_EQ(plain.encode("Hello").ids(), plain.ids("Hello"));
  // Its own model type has another kind of vocabulary.
  const auto of_gpt2 = tokenizer_with(
      {{"tokenizer.model", model},
       {"config.json", R"({"model_type":"gpt2"})"}});
  EXPECT_EQ(of_gpt2.encode("Hello").ids(), plain.ids("Hello"));
  const auto off = tokenizer_with(
      {{"tokenizer.model", model},
       {"config.json", R"({"model_type":"llama"})"},
       {"tokenizer_config.json", R"({"add_bos_token": false})"}});
  EXPECT_EQ(off.encode("Hello").ids(), plain.ids("Hello"));
}

TEST(TokenizerClasses, ClassesThatAreNotImplementedAreRefusedByName) {
  const std::string bert = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  const std::string model = model_file("fairseq.model");
  struct Case {
    Files files;
    std::vector<std::string> in_message;
  };
  const auto with_class = [](const std::string& name) {
    return std::pair<std::string, std::string>(
        "tokenizer_config.json", R"({"tokenizer_class": ")" + name + "\"}");
  };
  const std::vector<Case> cases{
      {{{"sentencepiece.bpe.model", model}, with_class("MBartTokenizer")},
       {"MBartTokenizer", "anew", "save_pretrained"}},
      {{{"spiece.model", model}, with_class("XLNetTokenizerFast")},
       {"XLNetTokenizerFast", "save_pretrained"}},
      {{{"vocab.txt", bert}, {"config.json", R"({"model_type":"roformer"})"}},
       {"RoFormerTokenizer", "roformer", "jieba", "BertTokenizer"}},
      {{{"tokenizer.json", "{}"}, with_class("RoFormerTokenizerFast")},
       {"RoFormerTokenizerFast", "jieba"}},
      {{{"spiece.model", model}, with_class("CpmTokenizer")},
       {"CpmTokenizer", "jieba", "token files"}},
      {{{"vocab.txt", bert}, with_class("MyOwnTokenizer")},
       {"MyOwnTokenizer", "not known", "tokenizer.json"}},
      {{{"spiece.model", model}, with_class("BertTokenizer")},
       {"BertTokenizer", "spiece.model"}},
      {{{"vocab.txt", bert}, {"added_tokens.json", R"({"x": -1})"}},
       {"added_tokens.json", "'x'"}},
      {{{"spiece.model", model},
        {"config.json", R"({"model_type":"t5"})"},
        {"tokenizer_config.json", R"({"extra_ids": -1})"}},
       {"'extra_ids' is -1"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.in_message.front());
    const std::string message = error_of([&] { tokenizer_with(one.files); });
    for (const std::string& part : one.in_message) {
      EXPECT_NE(message.find(part), std::string::npos)
          << "expected: " << part << "\nfound: " << message;
    }
  }
  const std::string json = model_file("bert.json");
  const auto own = tokenizer_with(
      {{"tokenizer.json", json},
       {"config.json", R"({"model_type":"roformer"})"}});
  EXPECT_EQ(own.encode("[MASK]").ids(), (Ids{2, 4, 3}));
  // A BERT vocabulary of such a model is one if the folder says so.
  const auto named = tokenizer_with(
      {{"vocab.txt", bert},
       {"config.json", R"({"model_type":"roformer"})"},
       with_class("BertTokenizer")});
  EXPECT_EQ(named.encode("[MASK]").ids(), (Ids{2, 4, 3}));
}

} // namespace tessera::text::tokenizer_classes_test

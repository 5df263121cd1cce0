// SPDX-License-Identifier: Apache-2.0
// A BERT tokenizer's files that are damaged, and texts of any bytes.

#include "tessera/text/tokenizer/tokenizer.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/json_text.h"
#include "zoo/hostile/values.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace tessera::zoo::hostile_tokenizer_test {
namespace {

using nlohmann::json;

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = {
      "[PAD]",
      "[UNK]",
      "[CLS]",
      "[SEP]",
      "[MASK]",
      "a",
      "##b",
      "un",
      "##aff",
      "\xe4\xb8\xad",
      "!"};
  return all;
}

json tokenizer_config() {
  return {
      {"tokenizer_class", "BertTokenizer"},
      {"do_lower_case", true},
      {"strip_accents", nullptr},
      {"tokenize_chinese_chars", true},
      {"unk_token", "[UNK]"},
      {"cls_token", "[CLS]"},
      {"mask_token", {{"content", "[MASK]"}, {"lstrip", false}}},
      {"model_max_length", 512},
      {"added_tokens_decoder",
       {{"4", {{"content", "[MASK]"}, {"normalized", false}}}}}};
}

json tokenizer() {
  json vocabulary = json::object();
  for (size_t id = 0; id < tokens().size(); ++id) {
    vocabulary[tokens()[id]] = id;
  }
  return {
      {"added_tokens",
       {{{"id", 11}, {"content", "[NEW]"}, {"normalized", false}}}},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 100},
        {"vocab", vocabulary}}}};
}

class HostileTokenizer : public ::testing::Test {
 protected:
  HostileTokenizer() {
    write("tokenizer_config.json", tokenizer_config().dump());
    write("tokenizer.json", tokenizer().dump());
  }

  void write(const char* file, const std::string& text) const {
    std::ofstream(folder_ / file, std::ios::binary) << text;
  }

  /// It reads texts, or is refused with an error that names `file` and `key`.
  void load(const std::string& file, const std::string& key = "") {
    try {
      const auto tokenizer = text::Tokenizer::from_folder(folder_.path());
      const text::Encoding encoding = tokenizer.encode(
          "Una\xff"
          "ff un\xc3\xa4"
          "b [MASK][NEW] \xe4\xb8\xad!",
          {.truncation = {.max_length = 7}});
      EXPECT_LE(encoding.tokens.size(), 7U);
      for (const int64_t id : encoding.ids()) {
        EXPECT_LT(id, tokenizer.size());
      }
      ++loaded_;
    } catch (const Error& error) {
      ++refused_;
      const std::string message = error.what();
      EXPECT_NE(message.find((folder_ / file).string()), std::string::npos)
          << message;
      EXPECT_NE(message.find(key), std::string::npos)
          << "'" << key << "' is not named: " << message;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an error of ours: " << error.what();
    }
  }

  TemporaryFolder folder_;
  int loaded_ = 0;
  int refused_ = 0;
};

} // namespace

TEST_F(HostileTokenizer, NamesTheFieldThatIsWrong) {
  load("");
  EXPECT_EQ(loaded_, 1);
  for (const char* const file : {"tokenizer_config.json", "tokenizer.json"}) {
    const json right = file == std::string("tokenizer.json")
                           ? tokenizer()
                           : tokenizer_config();
    for_each_change(
        right,
        hostile_values(),
        [&](const std::string& key, const std::string& text) {
          SCOPED_TRACE(text);
          write(file, text);
          // Of the ids that are not in a row the next one is named.
          const bool is_token =
              std::find(tokens().begin(), tokens().end(), key) !=
              tokens().end();
          load("", is_token ? "" : key);
        });
    write(file, right.dump());
  }
  EXPECT_GT(refused_, 500);
  EXPECT_GT(loaded_, 100);
}

TEST_F(HostileTokenizer, NamesFilesThatAreCutOrGarbled) {
  Numbers numbers(1);
  for (const char* const file : {"tokenizer_config.json", "tokenizer.json"}) {
    const std::string right = file == std::string("tokenizer.json")
                                  ? tokenizer().dump()
                                  : tokenizer_config().dump();
    for (int i = 0; i < 500; ++i) {
      const std::string text = damaged(right, numbers);
      SCOPED_TRACE(text);
      write(file, text);
      load("");
    }
    write(file, right);
  }
  EXPECT_GT(refused_, 300);
}

TEST_F(HostileTokenizer, NamesLinesOfVocabularies) {
  std::filesystem::remove(folder_ / "tokenizer.json");
  std::string lines;
  for (const std::string& token : tokens()) {
    lines += token + "\n";
  }
  write("vocab.txt", lines);
  load("vocab.txt");
  EXPECT_EQ(loaded_, 1);
  Numbers numbers(2);
  for (int i = 0; i < 1000; ++i) {
    const std::string text = damaged(lines, numbers);
    SCOPED_TRACE(text);
    write("vocab.txt", text);
    load("");
  }
  for (const std::string& text :
       {std::string(),
        std::string("\n"),
        std::string(1000, '\0'),
        lines + lines,
        lines + "\n",
        lines + std::string(1 << 20, 'x')}) {
    write("vocab.txt", text);
    load("vocab.txt");
  }
  EXPECT_GT(refused_, 100);
}

TEST_F(HostileTokenizer, TakesTextsOfAnyBytes) {
  const auto tokenizer = text::Tokenizer::from_folder(folder_.path());
  Numbers numbers(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = numbers.below(60); n > 0; --n) {
      text += numbers.below(3) == 0 ? numbers.of(tokens())
                                    : std::string(1, numbers.byte());
    }
    for (const int64_t id : tokenizer.ids(text)) {
      ASSERT_LT(id, tokenizer.size());
    }
  }
}

} // namespace tessera::zoo::hostile_tokenizer_test

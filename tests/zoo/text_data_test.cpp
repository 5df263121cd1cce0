// SPDX-License-Identifier: Apache-2.0
// Labeled texts as users have them: kinds of labels, pairs, other formats.
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/tasks/example_files.h"
#include "tessera/zoo/tasks/text_classification_data.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::zoo::text_data_test {

namespace {

class TextData : public ::testing::Test {
 protected:
  std::filesystem::path write(
      const std::string& content,
      const std::string& name = "data.jsonl") const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  /// Texts with these labels, as JSON.
  LabelledTexts read(
      const std::vector<std::string>& labels,
      bool numbers = false) const {
    std::string content;
    for (const std::string& label : labels) {
      content += R"({"text": "a", "label": )" + label + "}\n";
    }
    return read_labelled_texts(write(content), {}, numbers);
  }

  const TemporaryFolder folder_;
};

using Names = std::vector<std::string>;

} // namespace

TEST_F(TextData, LabelsAreStringsIntegersOrBooleans) {
  EXPECT_EQ(labels_of(read({"\"b\"", "\"a\""})), (Names{"a", "b"}));
  EXPECT_EQ(labels_of(read({"10", "2", "-1", "2"})), (Names{"-1", "2", "10"}));
  EXPECT_EQ(labels_of(read({"true", "false"})), (Names{"false", "true"}));
  for (const auto& [label, remedy] :
       {std::pair{"0.5", "model.problem_type=regression"},
        {"[1, 0]", "\"task\": \"examples\""},
        {"null", "expected a string, an integer or a boolean"}}) {
    expect_error([&] { read({label}); }, {"data.jsonl:1: 'label' is ", remedy});
  }
  expect_error(
      [&] {
        read({"1", "\"1\""});
      },
      {"data.jsonl:2: 'label' is \"1\", but 1 in line 1", "the same type"});
}

TEST_F(TextData, LabelsAreNumbersForRegression) {
  const auto texts = read({"0.5", "3", "\"-1.5\""}, /*numbers=*/true);
  EXPECT_EQ(texts.texts[0].number, 0.5);
  EXPECT_EQ(texts.texts[1].number, 3);
  EXPECT_EQ(texts.texts[2].number, -1.5);
  expect_error(
      [&] {
        read({"1", "\"3 stars\""}, true);
      },
      {"data.jsonl:2: 'label' is \"3 stars\"", "regression"});
}

TEST_F(TextData, HeldOutLabelsAreNamedWithTheirLine) {
  const auto tokenizer = Tokenizer::from_folder(minilm_folder());
  const auto texts = read({"1", "7"});
  expect_error(
      [&] {
        encode_labelled_texts(texts, {"0", "1"}, tokenizer, 16);
      },
      {"data.jsonl:2: the label '7'", "2 labels of the training data"});
}

TEST_F(TextData, PairsAreEncodedAsPairs) {
  const auto path =
      write(R"({"question": "a game", "passage": "a mail", "label": 1})");
  const auto texts =
      read_labelled_texts(path, {{"question", "passage"}, "label"});
  const auto tokenizer = Tokenizer::from_folder(minilm_folder());
  const auto encoded = encode_labelled_texts(texts, {"1"}, tokenizer, 16);
  const Encoding expected = tokenizer.encode_pair("a game", "a mail");
  const EncodedBatch batch =
      tokenizer.pad({encoded.front().encoding, expected});
  const auto row = batch.token_type_ids.begin() + batch.length;
  EXPECT_EQ(encoded.front().encoding.ids(), expected.ids());
  EXPECT_TRUE(
      std::equal(row, row + batch.length, batch.token_type_ids.begin()));
  expect_error(
      [&] {
        read_labelled_texts(path, {{"question", "answer"}, "label"});
      },
      {"data.jsonl:1: there is no 'answer'", "passage", "data.text_key"});
}

TEST_F(TextData, TruncatedTextsAreCounted) {
  const auto tokenizer = Tokenizer::from_folder(minilm_folder());
  LabelledTexts texts;
  // 8 and 9 tokens with [CLS] and [SEP]
  texts.texts.push_back({.text = "a a a a a a", .label = "x"});
  texts.texts.push_back({.text = "a a a a a a a", .label = "x"});
  EXPECT_EQ(
      truncated_count(encode_labelled_texts(texts, {"x"}, tokenizer, 8)), 1);
}

TEST_F(TextData, WarnsAboutWhatIsProbablyAMistake) {
  const auto warned = [&](const std::string& content) {
    ::testing::internal::CaptureStderr();
    warn_about_labels(read_labelled_texts(write(content)));
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string one = "{\"text\": \"a\", \"label\": \"x\"}\n";
  EXPECT_NE(
      warned(one + one).find("all texts have the label 'x'"),
      std::string::npos);
  EXPECT_NE(
      warned(one + "{\"text\": \"a\", \"label\": \"\"}\n")
          .find("1 of 2 texts have an empty label"),
      std::string::npos);
  EXPECT_NE(
      warned(one + "{\"text\": \" \", \"label\": \"y\"}\n")
          .find("1 of 2 texts are empty"),
      std::string::npos);
  EXPECT_EQ(warned(one + "{\"text\": \"a\", \"label\": \"y\"}\n"), "");
}

TEST_F(TextData, MissingColumnsAreComparedWithTheFirstLine) {
  const std::string one = "{\"text\": \"a\", \"label\": \"x\"}\n";
  const std::string other = "{\"text\": \"b\", \"stars\": 3}\n";
  expect_error(
      [&] { read_labelled_texts(write(other + one)); },
      {"data.jsonl:1: there is no 'label'", "data.label_key"});
  expect_error(
      [&] { read_labelled_texts(write(one + other)); },
      {"data.jsonl:2: there is no 'label', unlike in line 1"});
}

TEST_F(TextData, OtherFormatsAreNamedWithAConversion) {
  struct Case {
    const char* name;
    std::string content;
    std::initializer_list<const char*> parts;
  };
  const std::string gzip("\x1f\x8b\x08\x00\x00", 5);
  const Case cases[] = {
      {"t.csv", "text,label\na,b\n", {"(CSV)", "csv.DictReader", "t.jsonl"}},
      {"t2.csv", "text;label\na, b;c\n", {"(CSV)", "delimiter=\";\""}},
      {"t.tsv", "text\tlabel\na\tb\n", {"(TSV)", "delimiter="}},
      {"t.json", "[\n{\"text\": 1}]", {"a JSON array", "json.load"}},
      {"t2.json", "{\n\"text\": 1}", {"over several lines", "jq -c ."}},
      {"t.jsonl.gz", gzip, {"compressed with gzip", "gunzip --keep"}},
      {"t.parquet", "PAR1....", {"a Parquet file", "read_parquet"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const auto path = write(one.content, one.name);
    expect_error([&] { read_labelled_texts(path); }, {"expected JSON lines"});
    expect_error([&] { read_labelled_texts(path); }, one.parts);
  }
  // The command does not write what it reads, and shells take the path.
  expect_error(
      [&] { read_labelled_texts(write("text,label\na,b\n", "it's.jsonl")); },
      {"it'\\''s.jsonl' > '", "it'\\''s_converted.jsonl'"});
  // A byte order mark and commas are no table.
  EXPECT_EQ(
      read_labelled_texts(
          write("\xef\xbb\xbf{\"text\": \"a, b\", \"label\": \"x\"}"))
          .texts.size(),
      1U);
}

TEST_F(TextData, PositionsAndBadBytesAreReadable) {
  const std::string good = "{\"text\": \"a\", \"label\": \"x\"}\n";
  const auto path =
      write(good + "\n" + good + "{\"text\": \"caf\xe9\", \"label\": 1}");
  expect_error(
      [&] { read_labelled_texts(path); }, {"data.jsonl:4:15: ", "caf\\xE9"});
}

TEST_F(TextData, ExamplesSayWhatAFileIs) {
  const auto path = write(
      "{\"text\": \"a game of cards\", \"label\": \"games\"}\n"
      "{\"text\": \"a mail server\", \"label\": \"net\"}\n");
  expect_error(
      [&] { const ExampleFiles files(path); },
      {"data.jsonl' is text", "safetensors", "text_classification"});
}

} // namespace tessera::zoo::text_data_test

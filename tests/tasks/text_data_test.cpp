// SPDX-License-Identifier: Apache-2.0
// Labeled texts as users have them: kinds of labels, pairs, other formats.
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/zoo/inputs/example_files.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::text_data_test {

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
      zoo::HeadLabels kind = zoo::HeadLabels::kClass) const {
    std::string content;
    for (const std::string& label : labels) {
      content += R"({"text": "a", "label": )" + label + "}\n";
    }
    return read_labelled_texts({write(content)}, {}, kind);
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
        {"[1, 0]", "model.problem_type=multi_label_classification"},
        {"null", "expected a string, an integer or a boolean"}}) {
    expect_error([&] { read({label}); }, {"data.jsonl:1: 'label' is ", remedy});
  }
  expect_error(
      [&] {
        read({"1", "\"1\""});
      },
      {"data.jsonl:2: 'label' is \"1\", but 1 in line 1", "the same type"});
}

TEST_F(TextData, SeveralLabelsAreNoFractions) {
  for (const auto& [label, value] :
       {std::pair{"[0.3, 0, 1]", "[0.3,0,1], which has 0.3"},
        {"[1.0, 0.0, 0.5]", "[1.0,0.0,0.5], which has 0.5"},
        {"0.3", "0.3; with"}}) {
    expect_error(
        [&] {
          read({"[1, 0, 1]", label}, zoo::HeadLabels::kClasses);
        },
        {"data.jsonl:2: 'label' is ",
         value,
         "a list of names of classes, or 0 or 1 for each class",
         "data.skip_bad_rows=true"});
  }
}

TEST_F(TextData, LabelsAreNumbersForRegression) {
  const auto texts = read({"0.5", "3", "\"-1.5\""}, zoo::HeadLabels::kNumbers);
  EXPECT_EQ(texts.texts[0].number, 0.5);
  EXPECT_EQ(texts.texts[1].number, 3);
  EXPECT_EQ(texts.texts[2].number, -1.5);
  expect_error(
      [&] {
        read({"1", "\"3 stars\""}, zoo::HeadLabels::kNumbers);
      },
      {"data.jsonl:2: 'label' is \"3 stars\"", "regression"});
}

TEST_F(TextData, HeldOutLabelsAreNamedWithTheirLine) {
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
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
      read_labelled_texts({path}, {{"question", "passage"}, "label"});
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
  const auto encoded = encode_labelled_texts(texts, {"1"}, tokenizer, 16);
  const text::Encoding expected = tokenizer.encode_pair("a game", "a mail");
  const text::EncodedBatch batch =
      tokenizer.pad({encoded.front().encoding, expected});
  const auto row = batch.token_type_ids.begin() + batch.length;
  EXPECT_EQ(encoded.front().encoding.ids(), expected.ids());
  EXPECT_TRUE(
      std::equal(row, row + batch.length, batch.token_type_ids.begin()));
  expect_error(
      [&] {
        read_labelled_texts({path}, {{"question", "answer"}, "label"});
      },
      {"data.jsonl:1: there is no 'answer'", "passage", "data.text_key"});
}

TEST_F(TextData, TruncatedTextsAreMarked) {
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
  LabelledTexts texts{.files = {"texts"}};
  // 8 and 9 tokens with [CLS] and [SEP]
  texts.texts.push_back({.text = "a a a a a a", .labels = {"x"}});
  texts.texts.push_back({.text = "a a a a a a a", .labels = {"x"}});
  const auto encoded = encode_labelled_texts(texts, {"x"}, tokenizer, 8);
  EXPECT_FALSE(encoded[0].encoding.is_truncated);
  EXPECT_TRUE(encoded[1].encoding.is_truncated);
}

TEST_F(TextData, WarnsAboutWhatIsProbablyAMistake) {
  const auto warned = [&](const std::string& content) {
    ::testing::internal::CaptureStderr();
    warn_about_labels(read_labelled_texts({write(content)}));
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string one = "{\"text\": \"a\", \"label\": \"x\"}\n";
  EXPECT_NE(
      warned(one + one).find("all texts have the label 'x'"),
      std::string::npos);
  EXPECT_EQ(warned(one + "{\"text\": \"a\", \"label\": \"y\"}\n"), "");
}

TEST_F(TextData, EmptyTextsAndLabelsAreBadRows) {
  const std::string good = "x,y,label\na,b,c\n";
  const TextClassificationColumns pairs{{"x", "y"}};
  for (const auto& [line, key] :
       {std::pair{",b,c\n", "x"}, {"a, ,c\n", "y"}, {"a,b, \n", "label"}}) {
    const auto path = write(good + line, "a.csv");
    expect_error(
        [&] { read_labelled_texts({path}, pairs); },
        {"a.csv:3: '", key, "' is empty", "data.skip_bad_rows=true"});
    auto skips = pairs;
    skips.rows.bad_rows = text::BadRows::kSkip;
    const auto texts = read_labelled_texts({path}, skips);
    EXPECT_EQ(texts.texts.size(), 1U) << key;
    EXPECT_EQ(labels_of(texts), Names{"c"}) << key;
  }
  expect_error(
      [&] {
        read_labelled_texts({write("{\"text\": \"a\", \"label\": \"\"}")});
      },
      {"data.jsonl:1: 'label' is empty"});
}

TEST_F(TextData, TablesWithoutAHeaderAndNumbersThatAreNoneHaveARemedy) {
  expect_error(
      [&] { read_labelled_texts({write("good,1\nbad,2\n", "a.csv")}); },
      {"a.csv:2: there is no 'text'", "data.text_key", "data.columns"});
  for (const char* label : {"nan", "", "many"}) {
    expect_error(
        [&] {
          read_labelled_texts(
              {write(std::string("text,label\na,") + label + "\n", "b.csv")},
              {},
              zoo::HeadLabels::kNumbers);
        },
        {"b.csv:2: 'label' is", "expected a number", "data.skip_bad_rows"});
  }
}

TEST_F(TextData, MissingColumnsAreComparedWithTheFirstLine) {
  const std::string one = "{\"text\": \"a\", \"label\": \"x\"}\n";
  const std::string other = "{\"text\": \"b\", \"stars\": 3}\n";
  expect_error(
      [&] { read_labelled_texts({write(other + one)}); },
      {"data.jsonl:1: there is no 'label'", "data.label_key"});
  expect_error(
      [&] { read_labelled_texts({write(one + other)}); },
      {"data.jsonl:2: there is no 'label', unlike in line 1"});
}

// Formats that cannot be read are in data/text_rows_test.cpp.
TEST_F(TextData, TablesAndJsonLinesGiveTheSameTexts) {
  const auto json = write(
      "{\"text\": \"a, b\", \"more\": \"c\", \"label\": 10}\n"
      "{\"text\": \"d\", \"more\": \"e\\nf\", \"label\": 9}\n",
      "a.jsonl");
  const auto csv =
      write("label,text,more\r\n10,\"a, b\",c\r\n9,d,\"e\nf\"\r\n", "a.csv");
  const auto tsv =
      write("text\tlabel\tmore\na, b\t10\tc\nd\t9\t\"e\nf\"\n", "a.tsv");
  for (const auto& path : {json, csv, tsv}) {
    const auto read = read_labelled_texts({path}, {{"text", "more"}});
    ASSERT_EQ(read.texts.size(), 2U) << path;
    EXPECT_EQ(read.kind, LabelKind::kIntegers);
    EXPECT_EQ(labels_of(read), (Names{"9", "10"}));
    EXPECT_EQ(read.texts[0].text, "a, b");
    EXPECT_EQ(read.texts[0].second, "c");
    EXPECT_EQ(read.texts[1].second, "e\nf");
    EXPECT_EQ(read.texts[1].labels, (Names{"9"}));
  }
  const auto all = read_labelled_texts({json, csv, tsv}, {{"text", "more"}});
  EXPECT_EQ(all.texts.size(), 6U);
  EXPECT_EQ(all.place(all.texts[3]), csv.string() + ":3");
  const auto words = write("text,label\na,1\nb,many\n", "words.csv");
  EXPECT_EQ(read_labelled_texts({words}).kind, LabelKind::kStrings);
}

TEST_F(TextData, TextsMayHaveSeveralLabels) {
  const auto read_several = [&](const std::vector<std::string>& labels) {
    return read(labels, zoo::HeadLabels::kClasses);
  };
  const auto lists = read_several({"[\"b\", \"a\"]", "[]", "[\"c\"]", "\"c\""});
  EXPECT_TRUE(lists.have_several_labels);
  EXPECT_EQ(labels_of(lists), (Names{"a", "b", "c"}));
  EXPECT_EQ(lists.texts[0].labels, (Names{"a", "b"}));
  EXPECT_EQ(lists.texts[1].labels, Names());
  EXPECT_EQ(lists.texts[3].labels, Names{"c"});
  const auto strings = read_several({"\" b ,a\"", "\"\"", "\"c\""});
  EXPECT_EQ(strings.texts[0].labels, (Names{"a", "b"}));
  EXPECT_EQ(strings.texts[1].labels, Names());
  EXPECT_EQ(read_several({"[10, 9]", "2"}).texts[0].labels, (Names{"10", "9"}));
  const auto csv = read_labelled_texts(
      {write("text,label\na,x|y\nb,y\n", "a.csv")},
      {.label_separator = "|"},
      zoo::HeadLabels::kClasses);
  EXPECT_EQ(csv.texts[0].labels, (Names{"x", "y"}));
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
  const auto encoded =
      encode_labelled_texts(csv, labels_of(csv), tokenizer, 16);
  EXPECT_EQ(encoded[0].labels, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(encoded[1].labels, (std::vector<int64_t>{1}));
  expect_error(
      [&] { read_several({"[1, [2]]"}); }, {"data.jsonl:1: 'label' is [2]"});
  for (const char* twice : {"[\"c\", \"c\"]", "\"c,c\"", "[2, 3, 2]"}) {
    expect_error(
        [&] { read_several({twice}); }, {"data.jsonl:1: 'label'", "twice"});
  }
}

// Transformers' own form of several labels.
TEST_F(TextData, SeveralLabelsMayBeAValueForEach) {
  const auto read_several = [&](const std::vector<std::string>& labels) {
    return read(labels, zoo::HeadLabels::kClasses);
  };
  const std::vector<std::vector<std::string>> forms{
      {"[0, 1, 1]", "[0, 0, 0]", "[1, 0, 0]"},
      {"[0.0, 1.0, 1.0]", "[0.0, 0.0, 0.0]", "[1.0, 0.0, 0.0]"},
      {"[false, true, true]", "[false, false, false]", "[true, false, false]"}};
  for (const auto& rows : forms) {
    SCOPED_TRACE(rows.front());
    const auto texts = read_several(rows);
    EXPECT_EQ(labels_of(texts), (Names{"0", "1", "2"}));
    EXPECT_EQ(texts.texts[0].labels, (Names{"1", "2"}));
    EXPECT_EQ(texts.texts[1].labels, Names());
    EXPECT_EQ(texts.texts[2].labels, Names{"0"});
  }
  // A list that can be nothing else says what those of two values are.
  const auto two = read_several({"[0, 1]", "[0, 0]"});
  EXPECT_EQ(labels_of(two), (Names{"0", "1"}));
  EXPECT_EQ(two.texts[0].labels, Names{"1"});
  EXPECT_EQ(two.texts[1].labels, Names());
  // Ids of classes.
  const auto ids = read_several({"[1, 0]", "[1]", "[2, 0]"});
  EXPECT_EQ(labels_of(ids), (Names{"0", "1", "2"}));
  EXPECT_EQ(ids.texts[0].labels, (Names{"0", "1"}));
  expect_error(
      [&] {
        read_several({"[0, 1]", "[1, 0]"});
      },
      {"data.jsonl:1: 'label'", "2 classes", "names of labels"});
  expect_error(
      [&] {
        read_several({"[0, 2]", "[1, 1]"});
      },
      {"data.jsonl:2: 'label'", "data.jsonl:1", "each once"});
  expect_error(
      [&] {
        read_several({"[0, 1, 1]", "[1, 0, 0, 0]"});
      },
      {"data.jsonl:1: 'label'", "3 classes", "data.jsonl:2"});
}

TEST_F(TextData, BadRowsAreSkippedAndCountedIfWanted) {
  const auto path = write(
      "{\"text\": \"a\", \"label\": \"x\"}\n"
      "{\"text\": \"b\"}\n"
      "{\"text\": 3, \"label\": \"x\"}\n"
      "{\"text\": \"c\", \"label\": null}\n"
      "{\"text\": \"caf\xe9\", \"label\": \"x\"}\n"
      "{\"text\": \"d\", \"label\": \"z\"}\n");
  ::testing::internal::CaptureStderr();
  const auto texts =
      read_labelled_texts({path}, {.rows = {.bad_rows = text::BadRows::kSkip}});
  EXPECT_EQ(texts.texts.size(), 2U);
  EXPECT_EQ(texts.texts[1].text, "d");
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
  EXPECT_EQ(
      encode_labelled_texts(texts, {"x"}, tokenizer, 16, text::BadRows::kSkip)
          .size(),
      1U);
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* part :
       {"data.jsonl:2: there is no 'label'",
        "data.jsonl:3: 'text' is 3",
        "4 bad rows of '",
        "data.jsonl:6: the label 'z'",
        "1 row of '"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << "\n" << log;
  }
  expect_error(
      [&] {
        encode_labelled_texts(
            texts, {"w"}, tokenizer, 16, text::BadRows::kSkip);
      },
      {"no text has a known label"});
  expect_error(
      [&] {
        read_labelled_texts(
            {write("{\"text\": 1}\n", "b.jsonl")},
            {.rows = {.bad_rows = text::BadRows::kSkip}});
      },
      {"b.jsonl: the file contains no examples, only bad rows"});
  for (const char* name : {"empty.jsonl", "empty.csv", "empty.tsv"}) {
    expect_error(
        [&] { read_labelled_texts({write("", name)}); },
        {name, "contains no examples"});
  }
}

TEST_F(TextData, PositionsAndBadBytesAreReadable) {
  const std::string good = "{\"text\": \"a\", \"label\": \"x\"}\n";
  const auto path =
      write(good + "\n" + good + "{\"text\": \"caf\xe9\", \"label\": 1}");
  expect_error(
      [&] { read_labelled_texts({path}); },
      {"data.jsonl:4:15: ", "caf\\xE9", "save the file as UTF-8"});
}

TEST_F(TextData, ExamplesSayWhatAFileIs) {
  const auto path = write(
      "{\"text\": \"a game of cards\", \"label\": \"games\"}\n"
      "{\"text\": \"a mail server\", \"label\": \"net\"}\n");
  expect_error(
      [&] { const zoo::ExampleFiles files(path); },
      {"data.jsonl' is text", "safetensors", "text_classification"});
}

} // namespace tessera::tasks::text_data_test

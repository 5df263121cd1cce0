// SPDX-License-Identifier: Apache-2.0
// Rows of JSON lines, CSV and TSV files, and rows that are bad.
#include "tessera/text/rows/text_rows.h"
#include "tessera/text/rows/file_patterns.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::text::text_rows_test {

namespace {

namespace fs = std::filesystem;

class TextRowsTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& content, const std::string& name) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  /// "LINE {...}" of each row.
  std::vector<std::string> rows(
      const std::string& content,
      const std::string& name,
      const TextRowOptions& options = {}) const {
    std::vector<std::string> found;
    TextRows rows(write(content, name), options);
    while (const auto row = rows.next()) {
      found.push_back(std::to_string(row->line) + " " + row->values.dump());
    }
    return found;
  }

  const TemporaryFolder folder_;
};

using Rows = std::vector<std::string>;

} // namespace

// The expected fields are those of Python's csv.DictReader.
TEST_F(TextRowsTest, TablesFollowRfc4180) {
  EXPECT_EQ(
      rows(
          "\xef\xbb\xbfid,\"te\"\"xt\"\r\n"
          "1,\"a, \"\"b\"\"\r\nc\"\r\n"
          "\r\n"
          "2,d \"e\" f\r\n"
          "3,\"\"",
          "a.csv"),
      (Rows{
          R"(2 {"id":"1","te\"xt":"a, \"b\"\r\nc"})",
          R"(5 {"id":"2","te\"xt":"d \"e\" f"})",
          R"(6 {"id":"3","te\"xt":""})"}));
  EXPECT_EQ(rows("a;b\n1,5;2\n", "b.csv"), (Rows{R"(2 {"a":"1,5","b":"2"})"}));
  EXPECT_EQ(rows("text\none\n", "c.csv"), (Rows{R"(2 {"text":"one"})"}));
  EXPECT_EQ(
      rows("a\tb\n1, 2\t\"x\ty\"\n", "d.txt"),
      (Rows{R"(2 {"a":"1, 2","b":"x\ty"})"}));
}

TEST_F(TextRowsTest, QuotesMayHaveNoMeaningAndHeadersMayBeMissing) {
  EXPECT_EQ(
      rows(
          "gj04\t1\t*\t\"Our friends\ngj04\t0\t\tNo\"\n",
          "cola.tsv",
          {.columns = {"source", "label", "mark", "text"}, .quotes = false}),
      (Rows{
          R"(1 {"label":"1","mark":"*","source":"gj04","text":"\"Our friends"})",
          R"(2 {"label":"0","mark":"","source":"gj04","text":"No\""})"}));
}

TEST_F(TextRowsTest, JsonLinesAreFoundByExtensionOrContent) {
  for (const char* name : {"a.jsonl", "a.ndjson", "a.json", "a.txt", "a"}) {
    EXPECT_EQ(
        rows("\xef\xbb\xbf\n{\"b\": [1, \"x\"]}\r\n\n{\"a,\": null}", name),
        (Rows{R"(2 {"b":[1,"x"]})", R"(4 {"a,":null})"}))
        << name;
  }
}

// Longer than the buffer that files are read through.
TEST_F(TextRowsTest, RowsMayBeLong) {
  const std::string text(700'001, 'x');
  EXPECT_EQ(
      rows("a,b\n" + text + ",\"" + text + "\"\n", "a.csv"),
      (Rows{"2 {\"a\":\"" + text + "\",\"b\":\"" + text + "\"}"}));
  EXPECT_EQ(
      rows("{\"a\": \"" + text + "\"}\n{\"b\":1}", "a.jsonl"),
      (Rows{"1 {\"a\":\"" + text + "\"}", "2 {\"b\":1}"}));
}

TEST_F(TextRowsTest, BadRowsAreNamedAndTheNextOnesRead) {
  struct Case {
    const char* name;
    std::string content; ///< the second row is bad
    std::initializer_list<const char*> parts;
  };
  const Case cases[] = {
      {"a.jsonl", "{\"a\":\"1\"}\n{\"a\"\n{\"a\":\"3\"}\n", {"a.jsonl:2:"}},
      {"b.jsonl",
       "{\"a\":\"1\"}\n[1]\n{\"a\":\"3\"}\n",
       {"b.jsonl:2: ", "[1]"}},
      {"c.jsonl",
       "{\"a\":\"1\"}\n{\"a\":\"\xe9\"}\n{\"a\":\"3\"}\n",
       {"c.jsonl:2:", "\\xE9", "save the file as UTF-8"}},
      {"d.csv",
       "a\n1\n2,2\n3\n",
       {"d.csv:3: ", "2 fields", "names 1 column: \"a\""}},
      {"e.csv", "a\n1\nx\xe9y\n3\n", {"e.csv:3: 'a' is not UTF-8", "0xe9"}},
      {"f.csv", "a\n1\n\"x\"y\n3\n", {"f.csv:3: 'y' follows", "data.quotes"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const fs::path path = write(one.content, one.name);
    TextRows rows(path);
    EXPECT_EQ(rows.next()->values.at("a"), "1");
    expect_error([&] { rows.next(); }, one.parts);
    EXPECT_EQ(rows.next()->values.at("a"), "3");
    EXPECT_FALSE(rows.next().has_value());
    // The same through the function that may skip them.
    Rows used;
    const auto use = [&](const TextRow& row) {
      used.push_back(row.values.at("a"));
      TESSERA_CHECK(used.back() != "3", "three is not wanted");
    };
    expect_error([&] { for_each_row({path}, {}, use); }, one.parts);
    used.clear();
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(for_each_row({path, path}, {.bad_rows = BadRows::kSkip}, use), 4);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(used, (Rows{"1", "3", "1", "3"}));
    EXPECT_NE(log.find("three is not wanted"), std::string::npos) << log;
    EXPECT_NE(log.find("4 bad rows of '"), std::string::npos) << log;
  }
}

TEST_F(TextRowsTest, ALineThatIsNoHeaderIsShown) {
  expect_error(
      [&] { rows("# a comment\ntext,label\nx,1\n", "a.csv"); },
      {"a.csv:2: the row has 2 fields, and the header names 1 column: \"# a comment\""});
  expect_error(
      [&] { rows("a,b,c,d,e\n1\n", "b.csv"); },
      {R"(the header names 5 columns: "a", "b", "c", "d", ...)"});
  expect_error(
      [&] {
        rows("1\n", "c.csv", {.columns = {"text", "label"}});
      },
      {R"(data.columns has 2 columns: "text", "label")"});
}

TEST_F(TextRowsTest, OneRowIsCountedAsOne) {
  const fs::path path = write("a,b\n1\n2,3\n", "a.csv");
  ::testing::internal::CaptureStderr();
  for_each_row(
      {path}, {.bad_rows = BadRows::kSkip}, [](const TextRow& /*row*/) {});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the row has 1 field, and"), std::string::npos) << log;
  EXPECT_NE(log.find("1 bad row of '"), std::string::npos) << log;
  EXPECT_NE(log.find("' was skipped"), std::string::npos) << log;
}

TEST_F(TextRowsTest, WhatCannotBeReadIsAnError) {
  expect_error(
      [&] { rows("a,b\n1,\"x\n2,y\n", "a.csv"); },
      {"a.csv:2: a quote", "never closed", "data.quotes=false"});
  expect_error(
      [&] { rows("a,b,a\n1,2,3\n", "a.csv"); }, {"a.csv:1: ", "'a' twice"});
  expect_error(
      [&] { rows("a,b\n1,2\n", "a.jsonl"); },
      {"begins like a table with commas", "*.csv"});
  expect_error(
      [&] { rows(std::string("\xff\xfe{\0", 4), "a.csv"); },
      {"is UTF-16", "iconv"});
  expect_error(
      [&] { rows("text,label\rx,1\ry,2\r", "mac.csv"); },
      {"mac.csv", "carriage return alone", "tr '"});
  expect_error(
      [&] { rows("[\n{}]", "b.json"); }, {"a JSON array", "json.load"});
  expect_error(
      [&] { rows("{\n\"a\": 1}", "b.json"); }, {"over several lines", "jq -c"});
  expect_error(
      [&] { rows("PAR1....", "b.csv"); }, {"a Parquet file", "read_parquet"});
  expect_error(
      [&] { TextRows(folder_ / "none.csv"); }, {"none.csv", "No such"});
  expect_error([&] { TextRows(folder_.path()); }, {"it is a folder"});
  EXPECT_EQ(rows("", "empty.csv"), Rows());
  EXPECT_EQ(rows("\n \n", "empty.jsonl"), Rows());
}

TEST_F(TextRowsTest, PatternsStandForSortedFiles) {
  const auto b = write("", "b.csv");
  const auto a = write("", "a.csv");
  write("", "c.tsv");
  EXPECT_EQ(
      matching_files({(folder_ / "*.csv").string(), "other"}),
      (std::vector<fs::path>{a, b, "other"}));
  // A name that is there is no pattern.
  const auto bracket = write("", "[x].csv");
  EXPECT_EQ(
      matching_files({bracket.string()}), (std::vector<fs::path>{bracket}));
  expect_error(
      [&] { matching_files({(folder_ / "*.json").string()}); },
      {"no file matches", "*.json'"});
  expect_error(
      [&] {
        matching_files({a.string(), (folder_ / "?.csv").string()});
      },
      {"a.csv' is named twice"});
}

} // namespace tessera::text::text_rows_test

// SPDX-License-Identifier: Apache-2.0
// Text, JSON lines and CSV to files of tokens: what is read, what is refused,
// and that neither workers nor interruptions change a byte.
#include "tessera/zoo/data/tokenize_files.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/data/token_documents.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::zoo::tokenize_files_test {

namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

fs::path model() {
  return fs::path(tests::source_dir()) / "tests/zoo/fixtures/tokenizers" /
         "gpt2.json";
}

class TokenizeFiles : public ::testing::Test {
 protected:
  TokenizeFiles() {
    options_.output = folder_ / "out";
    options_.end_token = "<|end|>";
  }

  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }

  TokenizeResult run() const {
    return tokenize_files(model(), options_);
  }

  /// Texts of the documents, of which each has the end token.
  Texts texts_of(const fs::path& path) const {
    const auto tokenizer = text::Tokenizer::from_file(model());
    const int64_t end = *tokenizer.id_of("<|end|>");
    const TokenDocuments data(path);
    Texts texts;
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<int64_t> ids(static_cast<size_t>(data.length(i)));
      data.read_into(i, 0, ids);
      EXPECT_EQ(ids.back(), end);
      ids.pop_back();
      texts.push_back(tokenizer.decode(ids));
    }
    return texts;
  }

  Texts tokenized() const {
    const auto result = run();
    const Texts texts = texts_of(result.outputs.front());
    EXPECT_EQ(result.progress.documents, static_cast<int64_t>(texts.size()));
    EXPECT_EQ(result.progress.bytes, result.progress.total_bytes);
    EXPECT_EQ(
        result.progress.tokens,
        TokenDocuments(result.outputs.front()).file().size());
    fs::remove(folder_ / "out.bin");
    fs::remove(folder_ / "out.idx");
    EXPECT_EQ(
        text::Tokenizer::from_folder(folder_ / "out.tokenizer").size(),
        text::Tokenizer::from_file(model()).size());
    runtime::remove_tree(folder_ / "out.tokenizer");
    // Nothing but that and the input is left.
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("out"));
    }
    return texts;
  }

  /// Many documents of many lengths, in files of three formats.
  void make_corpus() {
    std::ostringstream lines;
    std::ostringstream table;
    table << "id,text\n";
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (int k = 0; k <= i % 23; ++k) {
        text += "word" + std::to_string(i * k) + (k % 5 == 4 ? "\\n" : " ");
      }
      lines << R"({"text": ")" << text << "\"}\n";
      table << i << ",\"" << text << "\n \"\"quoted\"\"\"\r\n";
    }
    options_.inputs = {
        write("a.jsonl", lines.str()),
        write("b.csv", table.str()),
        write("c.txt", lines.str())};
  }

  const TemporaryFolder folder_;
  TokenizeOptions options_;
};

} // namespace

TEST_F(TokenizeFiles, TakesFilesParagraphsAndLines) {
  options_.inputs = {
      write("a.txt", "One.\nTwo.\n\n \nThree.\r\nFour\n"),
      write("b.txt", "\xef\xbb\xbfGr\u00fc\u00dfe\n")};
  EXPECT_EQ(
      tokenized(),
      (Texts{"One.\nTwo.\n\n \nThree.\r\nFour\n", "Gr\u00fc\u00dfe\n"}));
  options_.format.unit = TextUnit::kParagraph;
  EXPECT_EQ(
      tokenized(), (Texts{"One.\nTwo.", "Three.\nFour", "Gr\u00fc\u00dfe"}));
  options_.format.unit = TextUnit::kLine;
  EXPECT_EQ(
      tokenized(),
      (Texts{"One.", "Two.", "Three.", "Four", "Gr\u00fc\u00dfe"}));
}

TEST_F(TokenizeFiles, TakesJsonLinesAndTables) {
  options_.inputs = {
      write("a.jsonl", "{\"text\": \"a\\nb\", \"x\": 1}\n\n{\"text\": \"c\"}"),
      write(
          "b.csv", "x,text\r\n1,plain\r\n\r\n2,\"a \"\"b\"\",\nc\"\r\n3,e\"f"),
      write("c.tsv", "text\tx\na,b\t1\n")};
  EXPECT_EQ(
      tokenized(), (Texts{"a\nb", "c", "plain", "a \"b\",\nc", "e\"f", "a,b"}));
  options_.format.text_key = "x";
  options_.inputs = {options_.inputs[1]};
  EXPECT_EQ(tokenized(), (Texts{"1", "2", "3"}));
  options_.inputs = {write("d.data", "{\"x\": \"y\"}")};
  options_.format.format = TextFormat::kJsonLines;
  EXPECT_EQ(tokenized(), (Texts{"y"}));
}

TEST_F(TokenizeFiles, TakesPatterns) {
  fs::create_directories(folder_ / "p/q/r");
  for (const char* name : {"p/b.py", "p/a.py", "p/q/c.py", "p/q/r/d.py"}) {
    write(name, name);
  }
  write("p/e.txt", "no");
  const std::string base = (folder_ / "p").string();
  options_.inputs = {base + "/*.py"};
  EXPECT_EQ(tokenized(), (Texts{"p/a.py", "p/b.py"}));
  options_.inputs = {base + "/**/*.py"};
  EXPECT_EQ(tokenized(), (Texts{"p/a.py", "p/b.py", "p/q/c.py", "p/q/r/d.py"}));
  options_.inputs = {base + "/q/**/d.py", base + "/a.py"};
  EXPECT_EQ(tokenized(), (Texts{"p/q/r/d.py", "p/a.py"}));
  const auto refused = [&](const std::string& input,
                           std::initializer_list<const char*> parts) {
    options_.inputs = {input};
    expect_error([&] { run(); }, parts);
  };
  refused(base + "/*.rs", {"no file matches", "*.rs"});
  refused(base, {"is a folder", "**/*.txt"});
  refused(base + "/none.txt", {"none.txt", "does not exist"});
}

TEST_F(TokenizeFiles, NamesBadRowsOrCountsThem) {
  const auto bad = [&](const std::string& name,
                       const std::string& content,
                       std::initializer_list<const char*> parts,
                       size_t good = 0) {
    options_.inputs = {write(name, content), write("good.txt", "good")};
    options_.skip_bad = false;
    expect_error([&] { run(); }, parts);
    expect_error([&] { run(); }, {name.c_str(), "--skip-bad"});
    EXPECT_FALSE(fs::exists(folder_ / "out.bin"));
    options_.skip_bad = true;
    options_.earlier = EarlierTokens::kReplace;
    const auto result = run();
    EXPECT_EQ(result.progress.bad_rows, 1) << name;
    EXPECT_EQ(texts_of(folder_ / "out.bin").size(), good + 1) << name;
    options_.earlier = EarlierTokens::kRefuse;
    fs::remove(folder_ / "out.bin");
  };
  bad("a.jsonl",
      "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n",
      {":2:", "'text' is missing"},
      1);
  bad("b.jsonl", "{\"text\": 7}\n", {"b.jsonl:1:", "'text' is 7"});
  bad("c.jsonl",
      "{\"text\": \"c\"}\n[1]",
      {"c.jsonl:2:", "JSON object", "[1]"},
      1);
  bad("d.jsonl", "{\"text\": \"a\"\n", {"d.jsonl:1"});
  bad("e.jsonl", "{\"text\": \"\"}\n", {"e.jsonl:1:", "'text' is empty"});
  bad("f.jsonl", "{\"text\": \"\xff\"}\n", {"f.jsonl:1"});
  bad("g.txt", "", {"g.txt: the file is empty"});
  bad("h.txt", "One.\nTw\xfeo\n", {"h.txt:2:", "byte 8", "0xfe", "UTF-8"});
  bad("i.csv",
      "text,x\na\nb,1\n",
      {"i.csv:2:", "1 field,", "names 2 columns"},
      1);
  bad("j.csv", "text\n\"a\n\"b\nc\n", {"j.csv:2:", "follows the quote"}, 1);
  bad("l.csv", "text,x\n\"a\n\xff\",1\n", {"l.csv:2:", "'text'", "0xff"});
  bad("m.csv", "text,x\n,1\n", {"m.csv:2:", "'text' is empty"});
  // These are no rows.
  options_.skip_bad = true;
  options_.inputs = {write("k.csv", "text\na\n\"b\nc\n")};
  expect_error([&] { run(); }, {"k.csv:3:", "never closed"});
  options_.inputs = {write("n.csv", "a,b\nc,d\n")};
  expect_error([&] { run(); }, {"n.csv:1", "'text'", "[\"a\",\"b\"]"});
  options_.inputs = {write("o.txt", "\x1f\x8b" + std::string(99, 'x'))};
  expect_error([&] { run(); }, {"o.txt", "gzip", "gunzip --keep"});
  options_.inputs = {write("p.txt", "")};
  options_.earlier = EarlierTokens::kReplace;
  expect_error([&] { run(); }, {"no document", "1 bad row"});
}

TEST_F(TokenizeFiles, BeginsDocumentsWithTheTokenThatIsAsked) {
  options_.inputs = {write("a.txt", "ab"), write("b.txt", "c")};
  const auto ids = [&](int64_t document) {
    const TokenDocuments data(folder_ / "out");
    std::vector<int64_t> found(static_cast<size_t>(data.length(document)));
    data.read_into(document, 0, found);
    return found;
  };
  const int64_t end = *text::Tokenizer::from_file(model()).id_of("<|end|>");
  run();
  const auto plain = std::vector{ids(0), ids(1)};
  options_.earlier = EarlierTokens::kReplace;
  options_.begin_token = "<|end|>";
  run();
  for (int64_t i = 0; i < 2; ++i) {
    auto expected = plain[static_cast<size_t>(i)];
    expected.insert(expected.begin(), end);
    EXPECT_EQ(ids(i), expected);
  }
  options_.begin_token = "<no such>";
  expect_error([&] { run(); }, {"gpt2.json", "<no such>", "--begin-token"});
}

TEST_F(TokenizeFiles, EndsDocumentsWithTheTokenThatIsAsked) {
  options_.inputs = {write("a.txt", "a<|end|>b")};
  const auto tokenizer = text::Tokenizer::from_file(model());
  const int64_t end = *tokenizer.id_of("<|end|>");
  const auto ends = [&] {
    options_.earlier = EarlierTokens::kReplace;
    run();
    const TokenDocuments data(folder_ / "out");
    std::vector<int64_t> ids(static_cast<size_t>(data.length(0)));
    data.read_into(0, 0, ids);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(ends(), 1);
  options_.parse_special_tokens = true;
  EXPECT_EQ(ends(), 2);
  options_.append_end = false;
  EXPECT_EQ(ends(), 1);
  options_.append_end = true;
  options_.end_token = "<no such>";
  expect_error([&] { run(); }, {"gpt2.json", "<no such>", "--end-token"});
  options_.end_token = "";
  expect_error([&] { run(); }, {"eos_token", "--no-append-end"});
}

TEST_F(TokenizeFiles, WritesTheSameWithAnyWorkersAndBatches) {
  make_corpus();
  options_.held_out = 0.1;
  const auto files = [&](size_t workers, int64_t batch_bytes) {
    options_.workers = workers;
    options_.batch_bytes = batch_bytes;
    options_.earlier = EarlierTokens::kReplace;
    run();
    std::vector<std::string> content;
    for (const char* name :
         {"out-train.bin",
          "out-train.idx",
          "out-heldout.bin",
          "out-heldout.idx"}) {
      content.push_back(runtime::read_text_file(folder_ / name));
    }
    return content;
  };
  const auto expected = files(1, 4 << 20);
  for (const size_t workers : {1UL, 2UL, 5UL}) {
    EXPECT_EQ(files(workers, 700), expected);
  }
  // The parts are those of the whole.
  const Texts train = texts_of(folder_ / "out-train");
  const Texts heldout = texts_of(folder_ / "out-heldout");
  options_.held_out = 0;
  run();
  const Texts all = texts_of(folder_ / "out");
  ASSERT_EQ(all.size(), 601);
  Texts expected_train;
  Texts expected_heldout;
  for (size_t i = 0; i < all.size(); ++i) {
    (is_held_out(static_cast<int64_t>(i), 0.1) ? expected_heldout
                                               : expected_train)
        .push_back(all[i]);
  }
  EXPECT_EQ(train, expected_train);
  EXPECT_EQ(heldout, expected_heldout);
  EXPECT_GT(heldout.size(), 20);
}

TEST_F(TokenizeFiles, APartWithoutDocumentsIsTold) {
  options_.inputs = {write("few.txt", "one\n")};
  options_.held_out = 0.01;
  testing::internal::CaptureStderr();
  run();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      log.find(
          "out-heldout.bin' is empty: of 1 document, none is in its share"),
      std::string::npos)
      << log;
  EXPECT_EQ(log.find("out-train.bin"), std::string::npos) << log;
}

TEST_F(TokenizeFiles, GoesOnAfterAnInterruptionWithTheSameBytes) {
  make_corpus();
  options_.held_out = 0.2;
  options_.workers = 2;
  options_.batch_bytes = 2000;
  options_.save_seconds = 0;
  run();
  const std::vector<std::string> names{
      "out-train.bin", "out-train.idx", "out-heldout.bin", "out-heldout.idx"};
  std::vector<std::string> expected;
  for (const std::string& name : names) {
    expected.push_back(runtime::read_text_file(folder_ / name));
    fs::remove(folder_ / name);
  }
  // Killed after 1, 2, 3, ... batches, until it is done.
  int kills = 0;
  for (int most = 1;; ++most) {
    const pid_t child = ::fork();
    if (child == 0) {
      int batches = 0;
      options_.progress = [&](const TokenizeProgress&) {
        if (++batches == most) {
          ::raise(SIGKILL);
        }
      };
      run();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++kills;
    ASSERT_TRUE(fs::exists(folder_ / "out.progress.json"));
    ASSERT_FALSE(fs::exists(folder_ / "out-train.bin"));
    // What was written after the last save.
    std::ofstream(folder_ / "out-train.bin.part", std::ios::app) << "rest";
    std::ofstream(folder_ / "out-heldout.idx.part", std::ios::app) << "rest";
  }
  EXPECT_GT(kills, 5);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(runtime::read_text_file(folder_ / names[i]), expected[i]);
  }
  // Done: it is neither lost nor written again unasked.
  expect_error([&] { run(); }, {"out-train.bin", "exists", "--overwrite"});
}

TEST_F(TokenizeFiles, RefusesToGoOnWithSomethingElse) {
  make_corpus();
  options_.batch_bytes = 2000;
  options_.save_seconds = 0;
  struct Stop {};
  const auto interrupt = [&] {
    options_.progress = [](const TokenizeProgress&) { throw Stop(); };
    options_.earlier = EarlierTokens::kReplace;
    EXPECT_THROW(run(), Stop);
    options_.progress = nullptr;
    options_.earlier = EarlierTokens::kRefuse;
  };
  interrupt();
  const auto same = options_;
  const auto refused = [&](std::initializer_list<const char*> parts) {
    expect_error([&] { run(); }, parts);
    options_ = same;
  };
  options_.format.unit = TextUnit::kLine;
  refused({"out.progress.json", "other options", "--overwrite"});
  options_.inputs.pop_back();
  refused({"out.progress.json", "other files"});
  std::ofstream(folder_ / "c.txt", std::ios::app) << "more";
  refused({"out.progress.json", "other files"});
  interrupt();
  fs::resize_file(folder_ / "out.bin.part", 1);
  refused({"out.bin.part", "1 bytes", "--overwrite"});
  interrupt();
  write("out.progress.json", "{}");
  refused({"out.progress.json", "damaged"});
  interrupt();
  EXPECT_GT(run().resumed_documents, 0);
}

TEST_F(TokenizeFiles, ReusesWhatWasMadeOfTheSame) {
  options_.inputs = {write("a.txt", "one"), write("b.txt", "two")};
  options_.earlier = EarlierTokens::kReuse;
  const auto made = run();
  EXPECT_FALSE(made.is_reused);
  const auto written = fs::last_write_time(folder_ / "out.bin");
  const auto again = run();
  EXPECT_TRUE(again.is_reused);
  EXPECT_EQ(again.outputs, made.outputs);
  EXPECT_EQ(again.progress.documents, 2);
  EXPECT_EQ(again.progress.tokens, made.progress.tokens);
  EXPECT_EQ(fs::last_write_time(folder_ / "out.bin"), written);
  // Other text, and other options.
  write("b.txt", "three");
  EXPECT_FALSE(run().is_reused);
  EXPECT_EQ(texts_of(folder_ / "out.bin"), (Texts{"one", "three"}));
  options_.format.unit = TextUnit::kLine;
  EXPECT_FALSE(run().is_reused);
  EXPECT_TRUE(run().is_reused);
  // What an interrupted call has begun of something else is left.
  options_.batch_bytes = 1;
  options_.save_seconds = 0;
  struct Stop {};
  options_.progress = [](const TokenizeProgress&) { throw Stop(); };
  write("a.txt", "four");
  EXPECT_THROW(run(), Stop);
  options_.progress = nullptr;
  write("a.txt", "fifty");
  const auto other = run();
  EXPECT_FALSE(other.is_reused);
  EXPECT_EQ(other.resumed_documents, 0);
  EXPECT_EQ(texts_of(folder_ / "out.bin"), (Texts{"fifty", "three"}));
  fs::remove(folder_ / "out.idx");
  EXPECT_FALSE(run().is_reused);
}

TEST_F(TokenizeFiles, PatternsSkipFoldersThatAreNone) {
  fs::create_directories(folder_ / "v3.1/q");
  fs::create_directories(folder_ / "v3.2");
  write("v3.1/a.py", "a");
  write("v3.1/q/b.py", "b");
  write("v3.2/c.py", "c");
  write("v3.x", "no folder");
  const std::string base = folder_.path().string();
  options_.inputs = {base + "/v3.*/*.py", base + "/v3.?/q/*.py"};
  EXPECT_EQ(tokenized(), (Texts{"a", "c", "b"}));
  options_.inputs = {base + "/**/v3.1/**/*.py"};
  EXPECT_EQ(tokenized(), (Texts{"a", "b"}));
}

} // namespace tessera::zoo::tokenize_files_test

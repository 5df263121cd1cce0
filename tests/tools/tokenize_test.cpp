// SPDX-License-Identifier: Apache-2.0
// `tessera tokenize` as a user runs it: from text to a trained model in two
// commands.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tokenize_test {

namespace {

namespace fs = std::filesystem;
using tests::read_json;
using tests::run_forked;

class TokenizeTool : public ::testing::Test {
 protected:
  TokenizeTool() {
    fs::create_directories(folder_ / "texts/more");
    for (int i = 0; i < 60; ++i) {
      std::ofstream(
          folder_ / ((i % 2 == 0 ? "texts/" : "texts/more/") +
                     std::to_string(i) + ".txt"))
          << "def f" << i << "(self):\n    return self.value + " << i << "\n";
    }
    std::ofstream(folder_ / "gpt.json") << R"({"model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"], "vocab_size": 2048, "n_embd": 16,
        "n_layer": 2, "n_head": 2, "n_positions": 32})";
  }

  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  tests::LaunchedJob::Result tokenize(
      const std::vector<std::string>& words) const {
    std::vector<std::string> all{
        "tokenize",
        "--model",
        tests::source_dir() + "/examples/data/python_gpt",
        "--output",
        path("out")};
    all.insert(all.end(), words.begin(), words.end());
    return run_forked(1, all);
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_F(TokenizeTool, GoesFromTextToAModelInTwoCommands) {
  const auto made =
      tokenize({"--input", path("texts/**/*.txt"), "--split", "0.8,0.2"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_NE(made.output.find("60 documents"), std::string::npos) << made.output;
  EXPECT_EQ(made.output.find("bad row"), std::string::npos);
  EXPECT_NE(made.output.find(path("out-train.bin")), std::string::npos);
  const auto trained = run_forked(
      2,
      {"train",
       tests::source_dir() + "/configs/train_gpt_python.json",
       "model.config=" + path("gpt.json"),
       "model.max_length=32",
       "training.batch_size=2",
       "training.max_steps=3",
       "data.train=" + path("out-train"),
       "data.heldout=" + path("out-heldout.bin"),
       "data.split=0",
       "output.folder=" + path("run")});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_NE(
      trained.output.find("documents in sequences of 32"), std::string::npos)
      << trained.output;
  EXPECT_GT(read_json(folder_ / "run/result.json").at("heldout_tokens"), 100);
  // The files of a run are compared by their content.
  fs::copy_file(
      folder_ / "out-heldout.bin",
      folder_ / "out-train.bin",
      fs::copy_options::overwrite_existing);
  fs::copy_file(
      folder_ / "out-heldout.idx",
      folder_ / "out-train.idx",
      fs::copy_options::overwrite_existing);
  const auto other = run_forked(
      2,
      {"train",
       path("run/config.json"),
       "training.resume=true",
       "training.max_steps=4"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(other.output.find("trained with other data"), std::string::npos)
      << other.output;
}

// As above in one command: rank 0 tokenizes, once.
TEST_F(TokenizeTool, TrainsOnText) {
  const auto train = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{
        "train",
        tests::source_dir() + "/configs/train_gpt_python.json",
        "model.config=" + path("gpt.json"),
        "model.max_length=32",
        "data.tokenizer=" + tests::source_dir() + "/examples/data/python_gpt",
        "training.batch_size=2",
        "training.max_steps=3",
        "data.train=[\"" + path("texts/**/*.txt") + "\"]",
        "data.split=0.2",
        "output.folder=" + path("run")};
    all.insert(all.end(), words.begin(), words.end());
    return run_forked(2, all);
  };
  const auto has = [](const tests::LaunchedJob::Result& result,
                      const std::string& text) {
    EXPECT_NE(result.output.find(text), std::string::npos) << text << "\n"
                                                           << result.output;
  };
  // A bad document ends all ranks before anything is trained.
  std::ofstream(folder_ / "texts/zz.txt") << "a\n\xff\n";
  const auto bad = train({"data.text.skip_bad_rows=false"});
  EXPECT_NE(bad.exit_code, 0);
  has(bad, "zz.txt:2: byte 3");
  has(bad, "data.text.skip_bad_rows=true");
  EXPECT_FALSE(fs::exists(folder_ / "run/config.json"));
  const auto first = train({});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  has(first, "60 documents");
  has(first, "1 bad row skipped");
  const auto result = read_json(folder_ / "run/result.json");
  EXPECT_GT(result.at("heldout_tokens"), 100);
  EXPECT_TRUE(fs::exists(folder_ / "run/model/tokenizer.json"));
  // A run that goes on, and a score, take what is there.
  const auto written = fs::last_write_time(folder_ / "run/tokens/train.bin");
  const auto more = train({"training.resume=true", "training.max_steps=4"});
  ASSERT_EQ(more.exit_code, 0) << more.output;
  has(more, "already tokenized");
  const auto score = run_forked(1, {"eval", path("run")});
  ASSERT_EQ(score.exit_code, 0) << score.output;
  EXPECT_EQ(fs::last_write_time(folder_ / "run/tokens/train.bin"), written);
  const auto text = run_forked(
      1,
      {"generate",
       "--model",
       path("run"),
       "--prompt",
       "def ",
       "--max-new-tokens",
       "2"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  // Other text is other data.
  std::ofstream(folder_ / "texts/0.txt") << "another = 1\n";
  const auto other = train({"training.resume=true", "training.max_steps=5"});
  EXPECT_NE(other.exit_code, 0);
  has(other, "trained with other data");
  // Without a tokenizer.
  const auto none = train({"data.tokenizer=", "output.overwrite=true"});
  EXPECT_NE(none.exit_code, 0);
  has(none, "data.tokenizer");
}

TEST_F(TokenizeTool, TakesOneDocumentPerLine) {
  std::ofstream(folder_ / "a.txt") << "One.\n\nTwo.\n";
  std::ofstream(folder_ / "b.csv") << "x,body\n1,Three.\n2,\n";
  const std::vector<std::string> words{
      "--input",
      path("a.txt"),
      path("b.csv"),
      "--document",
      "line",
      "--text-key",
      "body",
      "--workers",
      "2",
      "--no-append-end"};
  const auto bad = tokenize(words);
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_NE(
      bad.output.find(path("b.csv") + ":3: 'body' is empty"), std::string::npos)
      << bad.output;
  auto skipping = words;
  skipping.emplace_back("--skip-bad");
  const auto made = tokenize(skipping);
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_NE(made.output.find("3 documents"), std::string::npos) << made.output;
  EXPECT_NE(made.output.find("1 bad row skipped"), std::string::npos);
  const auto again = tokenize(skipping);
  EXPECT_NE(again.exit_code, 0);
  EXPECT_NE(again.output.find("--overwrite"), std::string::npos)
      << again.output;
}

TEST_F(TokenizeTool, SaysWhatIsWrong) {
  const auto fails = [&](const std::vector<std::string>& words,
                         const std::string& expected) {
    const auto result = tokenize(words);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    for (const char* rest :
         {"out.bin", "out.lock", "out.bin.part", "out.idx.part"}) {
      EXPECT_FALSE(fs::exists(folder_ / rest)) << expected << ": " << rest;
    }
  };
  const std::string text = path("texts/0.txt");
  fails({}, "--input");
  fails({"--input", text, "--split", "0.5,0.4"}, "--split takes");
  fails({"--input", text, "--document", "page"}, "--document");
  fails({"--input", text, "--format", "xml"}, "--format");
  fails({"--input", text, "--end-token", "<none>"}, "<none>");
  fails({"--input", path("none.txt")}, "does not exist");
  fails({"--input", path("texts")}, "is a folder");
  std::ofstream(folder_ / "bad.txt") << "caf\xe9";
  fails({"--input", path("bad.txt")}, "UTF-8");
  const auto tokenize_to = [&](const std::string& output) {
    return run_forked(
        1,
        {"tokenize",
         "--model",
         tests::source_dir() + "/examples/data/python_gpt",
         "--input",
         text,
         "--output",
         output});
  };
  const auto made = tokenize_to(path("new/folders/out"));
  EXPECT_EQ(made.exit_code, 0) << made.output;
  EXPECT_TRUE(fs::exists(folder_ / "new/folders/out.bin"));
  const auto lost = tokenize_to(text + "/out");
  EXPECT_NE(lost.exit_code, 0);
  EXPECT_NE(lost.output.find("cannot create the folder"), std::string::npos)
      << lost.output;
}

// From text to a model that writes some.
TEST_F(TokenizeTool, TheTokenizerOfTheDataGoesWithTheModel) {
  ASSERT_EQ(tokenize({"--input", path("texts/*.txt")}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "out.tokenizer/tokenizer.json"));
  std::ofstream(folder_ / "train.json")
      << R"({"task": "language_model", "model": {"max_length": 32},
        "training": {"batch_size": 2, "max_steps": 2},
        "data": {}, "output": {"overwrite": true}})";
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{
        "train",
        path("train.json"),
        "model.config=" + path("gpt.json"),
        "data.train=" + path("out"),
        "output.folder=" + path("run")};
    words.insert(words.end(), more.begin(), more.end());
    return run_forked(1, words);
  };
  const auto generate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{
        "generate",
        "--model",
        path("run"),
        "--prompt",
        "def ",
        "--max-new-tokens",
        "3"};
    words.insert(words.end(), more.begin(), more.end());
    return run_forked(1, words);
  };
  const auto trained = train({});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto written = generate({});
  EXPECT_EQ(written.exit_code, 0) << written.output;
  const auto exported = [&] { return run_forked(1, {"export", path("run")}); };
  const fs::path own = folder_ / "run/model/tokenizer.json";
  ASSERT_EQ(exported().exit_code, 0);
  EXPECT_TRUE(fs::exists(own));

  // Another tokenizer than the one that made the data.
  const auto other = train(
      {"data.tokenizer=" + tests::source_dir() +
       "/tests/zoo/fixtures/tokenizers/qwen2.json"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(
      other.output.find(
          "was made by the tokenizer in '" + path("out.tokenizer")),
      std::string::npos)
      << other.output;

  // Data that do not say what made them.
  fs::rename(folder_ / "out.tokenizer", folder_ / "elsewhere");
  const auto unknown = train({});
  ASSERT_EQ(unknown.exit_code, 0) << unknown.output;
  EXPECT_NE(unknown.output.find("name it in data.tokenizer"), std::string::npos)
      << unknown.output;
  EXPECT_FALSE(fs::exists(own));
  const auto refused = generate({});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("with --tokenizer"), std::string::npos)
      << refused.output;
  EXPECT_EQ(
      generate({"--tokenizer", path("elsewhere")}).output, written.output);
  EXPECT_EQ(
      generate({"--tokenizer", path("elsewhere/tokenizer.json")}).exit_code, 0);
  // What was copied there by hand is kept.
  fs::copy_file(folder_ / "elsewhere/tokenizer.json", own);
  ASSERT_EQ(exported().exit_code, 0);
  EXPECT_TRUE(fs::exists(own));
  // data.tokenizer says it.
  fs::remove(own);
  ASSERT_EQ(train({"data.tokenizer=" + path("elsewhere")}).exit_code, 0);
  EXPECT_TRUE(fs::exists(own));
}

} // namespace tessera::tokenize_test

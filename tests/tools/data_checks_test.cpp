// SPDX-License-Identifier: Apache-2.0
// What `tessera train` says about its data before the first step.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tools/run_forked.h"
#include "tools/trained_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::data_checks_test {

namespace {

using tests::read_json;
using tests::run_forked;

void write_tokens(
    const std::filesystem::path& path,
    const std::vector<uint16_t>& tokens) {
  std::ofstream(path, std::ios::binary)
      .write(
          reinterpret_cast<const char*>(tokens.data()),
          static_cast<std::streamsize>(2 * tokens.size()));
}

class DataChecks : public ::testing::Test {
 protected:
  DataChecks() {
    write_examples(data_);
    std::ofstream(folder_ / "gpt.json") << R"({"model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"], "vocab_size": 23, "n_embd": 16,
        "n_layer": 1, "n_head": 4, "n_positions": 16, "resid_pdrop": 0,
        "embd_pdrop": 0, "attn_pdrop": 0})";
    std::ofstream(folder_ / "train.json") << R"({"task": "language_model",
        "model": {"max_length": 16}, "training": {"batch_size": 2,
        "max_steps": 2}, "data": {}, "output": {}})";
  }

  tests::LaunchedJob::Result classify(
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{
        "train",
        "configs/finetune_minilm.json",
        "training.batch_size=4",
        "training.max_steps=1",
        "data.train=" + data_.string(),
        "output.folder=" + out_.string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return run_forked(1, arguments);
  }

  tests::LaunchedJob::Result pretrain(
      int ranks,
      const std::vector<uint16_t>& train,
      const std::vector<uint16_t>& heldout) const {
    write_tokens(folder_ / "train.bin", train);
    write_tokens(folder_ / "heldout.bin", heldout);
    return run_forked(
        ranks,
        {"train",
         (folder_ / "train.json").string(),
         "model.config=" + (folder_ / "gpt.json").string(),
         "data.train=" + (folder_ / "train.bin").string(),
         "data.heldout=" + (folder_ / "heldout.bin").string(),
         "output.folder=" + out_.string()});
  }

  void expect_refused(
      const tests::LaunchedJob::Result& result,
      std::initializer_list<const char*> parts) const {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    for (const char* part : parts) {
      EXPECT_NE(result.output.find(part), std::string::npos)
          << part << " is not in:\n"
          << result.output;
    }
    // No step was made.
    EXPECT_FALSE(std::filesystem::exists(out_));
  }

  const TemporaryFolder folder_;
  const std::filesystem::path data_ = folder_ / "data.jsonl";
  const std::filesystem::path out_ = folder_ / "run";
};

} // namespace

TEST_F(DataChecks, TokensOutsideTheVocabularyAreFoundByWhicheverRank) {
  const std::vector<uint16_t> good(16 * 40, 22);
  std::vector<uint16_t> bad = good;
  bad[16 * 40 - 1] = 23; // in the share of the last rank
  for (const int ranks : {1, 2}) {
    expect_refused(
        pretrain(ranks, bad, good),
        {"train.bin': token 639 (from 0) is 23", "vocabulary has 23 tokens"});
    expect_refused(
        pretrain(ranks, good, bad),
        {"heldout.bin': token 639 (from 0) is 23", "vocabulary has 23 tokens"});
  }
  bad[3] = 30; // and in that of the first one
  expect_refused(pretrain(2, bad, good), {"token 3 (from 0) is 30"});
  const auto trained = pretrain(2, good, good);
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST_F(DataChecks, TokensOfAWiderTypeAreFound) {
  const std::vector<uint16_t> good(16 * 40, 22);
  std::vector<uint16_t> halves; // of int32
  std::vector<uint16_t> quarters; // of int64
  for (uint16_t i = 0; i < 16 * 20; ++i) {
    const auto token = static_cast<uint16_t>(i % 23);
    halves.insert(halves.end(), {token, 0});
    quarters.insert(quarters.end(), {token, 0, 0, 0});
  }
  expect_refused(
      pretrain(2, halves, good),
      {"train.bin': every second one of the first 640 tokens is 0",
       "a file of int32 that is read as uint16",
       "data.token_type=int32"});
  expect_refused(pretrain(1, good, halves), {"heldout.bin': every second one"});
  expect_refused(
      pretrain(1, quarters, good), {"a file of int64 that is read as uint16"});
  write_tokens(folder_ / "train.bin", halves);
  const auto with_type = [&](const std::string& type) {
    return run_forked(
        1,
        {"train",
         (folder_ / "train.json").string(),
         "model.config=" + (folder_ / "gpt.json").string(),
         "data.train=" + (folder_ / "train.bin").string(),
         "data.token_type=" + type,
         "output.folder=" + out_.string()});
  };
  const auto right = with_type("int32");
  EXPECT_EQ(right.exit_code, 0) << right.output;
  EXPECT_NE(right.output.find("320 tokens"), std::string::npos) << right.output;
  runtime::remove_tree(out_);
  write_tokens(folder_ / "train.bin", quarters);
  expect_refused(with_type("int32"), {"a file of int64 that is read as int32"});
  // 16 bits do not hold the vocabulary.
  write_tokens(folder_ / "train.bin", good);
  auto model = read_json(folder_ / "gpt.json");
  model["vocab_size"] = 70000;
  std::ofstream(folder_ / "gpt.json") << model;
  expect_refused(
      with_type("uint16"),
      {"data.token_type is uint16, whose tokens are below 65536",
       "vocabulary has 70000 tokens",
       "int32"});
}

TEST_F(DataChecks, NumpyFilesAreWrittenWithATypeThatHoldsTheVocabulary) {
  std::ofstream(folder_ / "train.bin", std::ios::binary)
      << std::string("\x93NUMPY\x01\x00", 8) << std::string(200, ' ');
  expect_refused(
      run_forked(
          1,
          {"train",
           (folder_ / "train.json").string(),
           "model.config=" + (folder_ / "gpt.json").string(),
           "data.train=" + (folder_ / "train.bin").string(),
           "output.folder=" + out_.string()}),
      {"astype(\"int32\").tofile", "data.token_type=int32"});
}

TEST_F(DataChecks, PathsAreRelativeToTheirConfiguration) {
  write_tokens(folder_ / "train.bin", std::vector<uint16_t>(16 * 40, 5));
  // So deep that a path from the working directory leads nowhere from there.
  auto folder = folder_ / "deep";
  for (const auto& level : std::filesystem::current_path()) {
    folder /= level.has_root_directory() ? "er" : level;
  }
  const auto from_folder = [&](const char* name) {
    return std::filesystem::path(folder_ / name)
        .lexically_relative(folder)
        .string();
  };
  std::filesystem::create_directories(folder);
  const auto run_with = [&](const std::string& train,
                            const std::vector<std::string>& more = {}) {
    nlohmann::json config = read_json(folder_ / "train.json");
    config["model"]["config"] = from_folder("gpt.json");
    config["data"]["train"] = train;
    std::ofstream(folder / "c.json") << config;
    std::vector<std::string> words{
        "train",
        (folder / "c.json").string(),
        "output.folder=" + out_.string(),
        "output.overwrite=true"};
    words.insert(words.end(), more.begin(), more.end());
    return run_forked(1, words);
  };
  constexpr const char* kTold = "is that of the working directory";
  const auto beside = run_with(from_folder("train.bin"));
  EXPECT_EQ(beside.exit_code, 0) << beside.output;
  EXPECT_EQ(beside.output.find(kTold), std::string::npos) << beside.output;
  // As the run was started.
  EXPECT_EQ(
      read_json(out_ / "config.json").at("data").at("train"),
      (folder_ / "train.bin").string());
  // From the working directory, as overrides are.
  const std::string here = std::filesystem::relative(folder_ / "train.bin");
  const auto told = run_with(here);
  EXPECT_EQ(told.exit_code, 0) << told.output;
  EXPECT_NE(told.output.find(kTold), std::string::npos) << told.output;
  const auto once = run_forked(
      2,
      {"train",
       (folder / "c.json").string(),
       "output.folder=" + out_.string(),
       "output.overwrite=true"});
  EXPECT_NE(once.output.find(kTold), std::string::npos) << once.output;
  EXPECT_EQ(once.output.find(kTold), once.output.rfind(kTold)) << once.output;
  const auto given =
      run_with(from_folder("absent.bin"), {"data.train=" + here});
  EXPECT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(given.output.find(kTold), std::string::npos) << given.output;
  const auto absent = run_with(from_folder("absent.bin"));
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(
      absent.output.find((folder_ / "absent.bin").string()), std::string::npos)
      << absent.output;
}

TEST_F(DataChecks, NewModelsHaveTheTokensOfTheirTokenizer) {
  const auto tokenizer = folder_ / "tokenizer";
  std::filesystem::create_directories(tokenizer);
  std::filesystem::copy(
      tests::source_dir() + "/tests/zoo/fixtures/tokenizers/qwen2.json",
      tokenizer / "tokenizer.json");
  std::ofstream(tokenizer / "tokenizer_config.json")
      << R"({"eos_token": "<|end|>", "pad_token": "<|end|>"})";
  auto model = read_json(folder_ / "gpt.json");
  model["vocab_size"] = 422;
  model["bos_token_id"] = 7; // stays
  std::ofstream(folder_ / "gpt.json") << model;
  write_tokens(folder_ / "train.bin", std::vector<uint16_t>(16 * 40, 5));
  const auto trained = run_forked(
      1,
      {"train",
       (folder_ / "train.json").string(),
       "model.config=" + (folder_ / "gpt.json").string(),
       "data.train=" + (folder_ / "train.bin").string(),
       "data.tokenizer=" + tokenizer.string(),
       "output.folder=" + out_.string()});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  for (const char* file : {"config.json", "generation_config.json"}) {
    const auto json = read_json(out_ / "model" / file);
    EXPECT_EQ(json.value("bos_token_id", -1), 7) << file;
    EXPECT_EQ(json.value("eos_token_id", -1), 0) << file;
    EXPECT_EQ(json.value("pad_token_id", -1), 0) << file;
  }
}

TEST_F(DataChecks, RunFoldersAreModels) {
  const std::vector<uint16_t> tokens(16 * 40, 5);
  const auto trained = pretrain(1, tokens, tokens);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto input = folder_ / "ids.json";
  std::ofstream(input) << R"({"input_ids": [[5, 7]]})";
  const auto works = [&](const std::vector<std::string>& words) {
    const auto result = run_forked(1, words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << ": " << result.output;
    EXPECT_TRUE(std::filesystem::exists(words.back())) << words[0];
  };
  works(
      {"generate",
       "--model",
       out_.string(),
       "--max-new-tokens",
       "3",
       "--input",
       input.string(),
       "--output",
       (folder_ / "generated.json").string()});
  works(
      {"logits",
       "--model",
       out_.string(),
       "--input",
       input.string(),
       "--output",
       (folder_ / "logits.safetensors").string()});
  works(
      {"convert", "--from", out_.string(), "--to", (folder_ / "hf").string()});
  EXPECT_EQ(run_forked(1, {"eval", out_.string()}).exit_code, 0);
  // and what training starts from
  const auto further = run_forked(
      1,
      {"train",
       (folder_ / "train.json").string(),
       "model.folder=" + out_.string(),
       "data.train=" + (folder_ / "train.bin").string(),
       "output.folder=" + (folder_ / "further").string()});
  EXPECT_EQ(further.exit_code, 0) << further.output;
  const auto predicted = run_forked(1, {"predict", out_.string(), "a"});
  EXPECT_EQ(predicted.exit_code, 1);
  EXPECT_NE(predicted.output.find("text_classification"), std::string::npos)
      << predicted.output;
}

TEST_F(DataChecks, TextsArePartOfTheLog) {
  std::ofstream(data_) << R"({"text": "a a a a a a a a a a", "label": 1})"
                       << "\n"
                       << R"({"text": "a", "label": 0})"
                       << "\n"
                       << R"({"text": "a", "label": 0})"
                       << "\n"
                       << R"({"text": "a", "label": 0})"
                       << "\n";
  const auto result = classify({"model.max_length=8", "data.heldout="});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(
      result.output.find(
          "1 of 4 texts is longer than model.max_length, 8 tokens"),
      std::string::npos)
      << result.output;
}

TEST_F(DataChecks, MaxLengthIsComparedWithThePositions) {
  expect_refused(
      classify({"model.max_length=600"}),
      {"model.max_length is 600", "512 positions"});
}

TEST_F(DataChecks, HeldOutDataAreOptional) {
  const auto config = folder_ / "config.json";
  auto json = nlohmann::json::parse(std::ifstream(
      std::filesystem::path(tests::source_dir()) /
      "configs/finetune_minilm.json"));
  json["data"].erase("heldout");
  json["model"]["folder"] = tests::source_dir() + "/models/minilm";
  std::ofstream(config) << json;
  const auto missing = run_forked(
      1,
      {"train",
       config.string(),
       "training.batch_size=4",
       "training.max_steps=1",
       "data.train=" + data_.string(),
       "output.folder=" + (folder_ / "missing").string()});
  EXPECT_EQ(missing.exit_code, 0) << missing.output;
  EXPECT_EQ(missing.output.find("held-out"), std::string::npos);
  for (const char* none : {"data.heldout=", "data.heldout=null"}) {
    const auto result = classify({none});
    EXPECT_EQ(result.exit_code, 0) << none << result.output;
    runtime::remove_tree(out_);
  }
}

TEST_F(DataChecks, DeviceAndSizesAreHinted) {
  const auto refused = classify({"device=gpu"});
  EXPECT_NE(refused.output.find("did you mean \"cuda\"?"), std::string::npos)
      << refused.output;
  EXPECT_NE(
      classify({"memory.device_bytes=11GX"})
          .output.find("such as \"11GB\" or \"11GiB\""),
      std::string::npos);
  const auto result = classify({"memory.device_bytes=2GiB", "data.heldout="});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(
      read_json(out_ / "config.json").at("memory").at("device_bytes"),
      int64_t{2} << 30);
}

} // namespace tessera::data_checks_test

// SPDX-License-Identifier: Apache-2.0
// `tessera train` of a language model as a user runs it: from fresh weights, on
// with them, and under any layout of ranks.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace tessera::train_language_model_test {

namespace {

using tests::losses_of;
using tests::read_json;
using tests::run_forked;

class TrainLanguageModel : public ::testing::Test {
 protected:
  TrainLanguageModel() {
    std::ofstream tokens(folder_ / "tokens.bin", std::ios::binary);
    for (int i = 0; i < 16 * 64; ++i) {
      // Counting, with a turn now and then.
      const auto token = static_cast<uint16_t>((i + i / 37) % 23);
      const char bytes[] = {
          static_cast<char>(token & 0xff), static_cast<char>(token >> 8)};
      tokens.write(bytes, 2);
    }
    std::ofstream(folder_ / "gpt.json") << R"({"model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"], "vocab_size": 23, "n_embd": 16,
        "n_layer": 4, "n_head": 4, "n_positions": 16, "resid_pdrop": 0,
        "embd_pdrop": 0, "attn_pdrop": 0})";
    std::ofstream(folder_ / "train.json") << R"({"task": "language_model",
        "model": {"max_length": 16}, "optimizer": {"lr": 1e-2},
        "training": {"batch_size": 4, "clip_grad_norm": 1.0, "seed": 3,
          "max_steps": 4}, "data": {}, "output": {}})";
  }

  /// Documents of 1 to 19 tokens that count, ended by token 0.
  void write_documents(const std::string& name, int tokens) const {
    std::ofstream file(folder_ / (name + ".bin"), std::ios::binary);
    int left = 1;
    for (int i = 0; i < tokens; ++i) {
      const bool is_end = --left == 0;
      const char token =
          is_end ? '\0' : static_cast<char>(1 + (i * i / 7 + left) % 22);
      left = is_end ? 1 + i * 7 % 19 : left;
      file.write(&token, 1);
      file.put('\0');
    }
  }

  tests::LaunchedJob::Result run(
      const std::string& name,
      int ranks,
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> words{
        "train",
        (folder_ / "train.json").string(),
        "data.train=" + (folder_ / "tokens.bin").string(),
        "output.folder=" + (folder_ / name).string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return run_forked(ranks, words);
  }

  std::string fresh() const {
    return "model.config=" + (folder_ / "gpt.json").string();
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_F(TrainLanguageModel, FromFreshWeightsAndOn) {
  const auto first =
      run("first",
          1,
          {fresh(),
           "training.max_steps=60",
           "training.epochs=20",
           "data.heldout=" + (folder_ / "tokens.bin").string()});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_NE(
      first.output.find("1024 tokens in sequences of 16"), std::string::npos)
      << first.output;
  const nlohmann::json result = read_json(folder_ / "first/result.json");
  EXPECT_EQ(result.at("heldout_tokens"), 64 * 15);
  // Guessing is log(23) = 3.1.
  EXPECT_LT(result.at("heldout_loss").get<double>(), 1.5);
  // The report has them too, and the configuration and the device.
  const std::string report =
      runtime::read_text_file(folder_ / "first/report.html");
  EXPECT_NE(report.find("held-out loss"), std::string::npos);
  EXPECT_NE(report.find("Gradient norm"), std::string::npos);
  EXPECT_NE(report.find("threads per rank"), std::string::npos);
  EXPECT_NE(
      report.find("optimizer state of rank 0 (device)"), std::string::npos);
  EXPECT_NE(report.find("&quot;max_length&quot;"), std::string::npos);
  const auto score = run_forked(1, {"eval", (folder_ / "first").string()});
  ASSERT_EQ(score.exit_code, 0) << score.output;
  char expected[60];
  std::snprintf(
      expected,
      sizeof(expected),
      "loss %.4f over 960 tokens",
      result.at("heldout_loss").get<double>());
  EXPECT_NE(score.output.find(expected), std::string::npos) << score.output;
  // Scoring needs memory for the weights, training for four times that.
  const auto small = run_forked(
      1, {"eval", (folder_ / "first").string(), "memory.device_bytes=1"});
  std::smatch needed;
  ASSERT_TRUE(std::regex_search(
      small.output, needed, std::regex("at least [^(]*\\(([0-9]+) bytes")))
      << small.output;
  const auto weights = static_cast<double>(
      std::filesystem::file_size(folder_ / "first/model/model.safetensors"));
  EXPECT_LT(std::stod(needed[1]), 1.5 * weights);
  const auto second =
      run("second",
          2,
          {"model.folder=" + (folder_ / "first/model").string(),
           "training.batch_size=2",
           "optimizer.lr=1e-4"});
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_LT(losses_of(folder_ / "second").front(), 1.5);
  const auto adapter =
      run("adapter",
          2,
          {"model.folder=" + (folder_ / "first/model").string(),
           "training.batch_size=2",
           R"(model.lora={"target_modules": ["c_attn"], "merge": true})"});
  ASSERT_EQ(adapter.exit_code, 0) << adapter.output;
  EXPECT_NE(adapter.output.find("adapter/, model/"), std::string::npos)
      << adapter.output;
  for (const char* file :
       {"adapter/adapter_model.safetensors", "model/model.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "adapter" / file)) << file;
  }
  EXPECT_EQ(
      read_json(folder_ / "adapter/adapter/adapter_config.json")
          .at("task_type"),
      "CAUSAL_LM");
}

TEST_F(TrainLanguageModel, HasTheLossesOfOneRankUnderAnyLayout) {
  const auto train = [&](const std::string& name,
                         int ranks,
                         std::vector<std::string> overrides) {
    overrides.push_back(fresh());
    const auto result = run(name, ranks, overrides);
    EXPECT_EQ(result.exit_code, 0) << name << result.output;
    return losses_of(folder_ / name);
  };
  const auto alone = train("alone", 1, {"training.accumulate=4"});
  ASSERT_EQ(alone.size(), 4U);
  const auto expect_same = [&](const std::string& name,
                               int ranks,
                               const std::vector<std::string>& overrides) {
    const auto found = train(name, ranks, overrides);
    ASSERT_EQ(found.size(), alone.size()) << name;
    for (size_t i = 0; i < alone.size(); ++i) {
      // Float32 sums in other orders, over four steps of AdamW.
      EXPECT_NEAR(found[i], alone[i], 2e-4) << name << ", step " << i + 1;
    }
  };
  expect_same(
      "sequence",
      4,
      {"training.accumulate=2",
       "parallel.shard=2",
       "parallel.tensor=2",
       "parallel.sequence=true"});
  expect_same(
      "pipeline",
      4,
      {"training.accumulate=4",
       "parallel.shard=1",
       "parallel.tensor=2",
       "parallel.pipeline=2",
       "parallel.cut=cost",
       "model.checkpoint_layers=3"});
  expect_same(
      "ulysses",
      2,
      {"training.accumulate=4", "parallel.shard=1", "parallel.context=2"});
  expect_same(
      "ring",
      4,
      {"training.accumulate=4",
       "parallel.shard=1",
       "parallel.context=2",
       "parallel.pipeline=2",
       "parallel.context_attention=ring",
       "parallel.context_layout=zigzag"});
}

// The stream of samples is that of one run, whatever ranks go on with it:
// blended and packed, within an epoch and into the next.
TEST_F(TrainLanguageModel, GoesOnAtTheSameSampleWithOtherRanks) {
  // 24 and 6 sequences of 16 tokens: 12 and 18 of them in each epoch.
  write_documents("long", 361);
  write_documents("short", 93);
  const std::string blend = formatted(
      R"(data.blend=[{{"path": "{}"}}, {{"path": "{}", "weight": 1.5}}])",
      (folder_ / "long.bin").string(),
      (folder_ / "short.bin").string());
  const std::vector<std::string> data{
      fresh(),
      "data.train=",
      blend,
      "data.end_token=0",
      "optimizer.lr=1e-3",
      "training.epochs=4",
      "schedule.decay=constant",
      "training.save_every=1"};
  const auto train = [&](const std::string& name,
                         int ranks,
                         std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), data.begin(), data.end());
    const auto result = run(name, ranks, overrides);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(
        result.output.find("documents in 2 files in sequences of 16"),
        std::string::npos)
        << result.output;
    return losses_of(folder_ / name);
  };
  const auto alone = train(
      "alone",
      1,
      {"training.accumulate=4",
       "training.batch_size=2",
       "training.max_steps=10"});
  ASSERT_EQ(alone.size(), 10U);
  train("moved", 4, {"training.batch_size=2", "training.max_steps=2"});
  // 30 samples an epoch: 3 steps of 8, and 6 samples that are left.
  train(
      "moved",
      2,
      {"training.resume=true",
       "training.batch_size=4",
       "training.max_steps=5"});
  train(
      "moved",
      2,
      {"training.resume=true",
       "training.batch_size=1",
       "training.accumulate=4",
       "training.max_steps=8",
       "data.loader.threads=3"});
  const auto moved = train(
      "moved",
      1,
      {"training.resume=true",
       "training.batch_size=8",
       "training.max_steps=10",
       "data.loader.threads=0"});
  ASSERT_EQ(moved.size(), alone.size());
  double least_step = 1;
  for (size_t i = 0; i < alone.size(); ++i) {
    // Float32 sums in other orders, over ten steps of AdamW.
    EXPECT_NEAR(moved[i], alone[i], 1e-4) << "step " << i + 1;
    if (i > 0) {
      least_step = std::min(least_step, std::abs(alone[i] - alone[i - 1]));
    }
  }
  EXPECT_GT(least_step, 5e-4) << "other samples have other losses";
}

TEST_F(TrainLanguageModel, HoldsOutDocumentsAndKeepsThemApart) {
  write_documents("data", 600);
  const std::vector<std::string> data{
      fresh(),
      "data.train=" + (folder_ / "data.bin").string(),
      "data.end_token=0",
      "data.split=0.3",
      "training.max_steps=2",
      "training.batch_size=2"};
  const auto train = [&](const std::string& name,
                         int ranks,
                         std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), data.begin(), data.end());
    const auto result = run(name, ranks, overrides);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return read_json(folder_ / name / "result.json");
  };
  const auto joined = train("joined", 1, {});
  const auto apart = train("apart", 1, {"data.separate_documents=true"});
  // Another share of the tokens is predicted, in the same sequences.
  EXPECT_EQ(joined.at("heldout_tokens").get<int64_t>() % 15, 0);
  EXPECT_LT(apart.at("heldout_tokens"), joined.at("heldout_tokens"));
  EXPECT_NE(apart.at("last_loss"), joined.at("last_loss"));
  const auto score = run_forked(1, {"eval", (folder_ / "apart").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  char expected[60];
  std::snprintf(
      expected,
      sizeof(expected),
      "loss %.4f over %lld tokens",
      apart.at("heldout_loss").get<double>(),
      apart.at("heldout_tokens").get<long long>());
  EXPECT_NE(score.output.find(expected), std::string::npos) << score.output;
  // Under any layout of ranks.
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.tensor=2", "parallel.sequence=true"},
        {"parallel.context=2"},
        {"parallel.context=2", "parallel.context_attention=ring"},
        {"parallel.pipeline=2"}}) {
    std::vector<std::string> overrides = layout;
    overrides.emplace_back("data.separate_documents=true");
    overrides.emplace_back("output.overwrite=true");
    const auto found = train("divided", 2, overrides);
    EXPECT_EQ(found.at("heldout_tokens"), apart.at("heldout_tokens"));
    // Float32 sums in other orders, over two steps of AdamW.
    EXPECT_NEAR(
        found.at("heldout_loss").get<double>(),
        apart.at("heldout_loss").get<double>(),
        2e-4)
        << layout.back();
  }
}

// By as many ranks as there are, whoever has trained it; what is done stays.
TEST_F(TrainLanguageModel, IsScoredOnOneRankAndNotTrainedTwice) {
  const std::string heldout =
      "data.heldout=" + (folder_ / "tokens.bin").string();
  const std::vector<std::string> overrides{
      fresh(), heldout, "training.save_every=2", "parallel.tensor=2"};
  const auto trained = run("divided", 2, overrides);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto folder = folder_ / "divided";
  const nlohmann::json result = read_json(folder / "result.json");
  char expected[60];
  std::snprintf(
      expected,
      sizeof(expected),
      "loss %.4f over 960 tokens",
      result.at("heldout_loss").get<double>());
  for (const auto& path : {folder, folder / "config.json"}) {
    const auto score = run_forked(1, {"eval", path.string()});
    EXPECT_EQ(score.exit_code, 0) << score.output;
    EXPECT_NE(score.output.find(expected), std::string::npos) << score.output;
  }
  const auto fresh_weights = run_forked(
      1,
      {"eval",
       (folder_ / "train.json").string(),
       fresh(),
       heldout,
       "data.train=" + (folder_ / "tokens.bin").string(),
       "output.folder=" + (folder_ / "none").string()});
  EXPECT_NE(fresh_weights.exit_code, 0);
  EXPECT_NE(fresh_weights.output.find("give the run folder"), std::string::npos)
      << fresh_weights.output;

  // One that does not end leaves no earlier result.
  ASSERT_EQ(run("stopped", 1, {fresh(), heldout}).exit_code, 0);
  EXPECT_NE(
      run("stopped",
          1,
          {fresh(), heldout, "optimizer.lr=1e30", "output.overwrite=true"})
          .exit_code,
      0);
  const auto stopped = run_forked(1, {"eval", (folder_ / "stopped").string()});
  EXPECT_NE(stopped.exit_code, 0);
  EXPECT_NE(stopped.output.find("not finished"), std::string::npos)
      << stopped.output;

  const auto again =
      run("divided", 1, {fresh(), heldout, "training.resume=true"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_NE(again.output.find("nothing left to do"), std::string::npos)
      << again.output;
  EXPECT_EQ(read_json(folder / "result.json"), result);
}

// Before anything is trained.
TEST_F(TrainLanguageModel, OverwritesNothingOfOthers) {
  const auto model = folder_ / "mine";
  std::filesystem::create_directories(model / "model");
  std::ofstream(model / "model" / "thesis.tex") << "years of work";
  const auto lost = run("mine", 1, {fresh()});
  EXPECT_NE(lost.exit_code, 0);
  EXPECT_NE(lost.output.find("thesis.tex"), std::string::npos) << lost.output;
  EXPECT_FALSE(std::filesystem::exists(model / "metrics.jsonl"));

  runtime::remove_tree(model);
  std::filesystem::create_directories(model);
  std::filesystem::copy_file(folder_ / "gpt.json", model / "config.json");
  const auto overwritten = run("mine", 1, {fresh()});
  EXPECT_NE(overwritten.exit_code, 0);
  EXPECT_NE(
      overwritten.output.find("not from a run of `tessera train`"),
      std::string::npos)
      << overwritten.output;
  EXPECT_EQ(read_json(model / "config.json"), read_json(folder_ / "gpt.json"));
}

TEST_F(TrainLanguageModel, SaysWhatIsWrong) {
  const auto fails = [&](int ranks,
                         std::vector<std::string> overrides,
                         const std::string& expected) {
    const auto result = run("wrong", ranks, overrides);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "wrong")) << expected;
  };
  fails(1, {}, "model.folder is");
  fails(1, {fresh(), "model.folder=x"}, "set either this");
  fails(1, {fresh(), "data.train="}, "data.blend, a list");
  fails(1, {fresh(), "data.split=0.5"}, "set data.end_token");
  fails(
      1,
      {fresh(), "data.separate_documents=true"},
      "set data.end_token to the token that ends them");
  fails(
      1,
      {fresh(), "data.end_token=22", "data.split=1e-9"},
      "for the held-out part");
  fails(
      1,
      {fresh(),
       "data.split=0.5",
       "data.heldout=" + (folder_ / "tokens.bin").string()},
      "set either this or data.heldout");
  fails(1, {fresh(), "data.train=absent.bin"}, "'absent.bin'");
  fails(1, {fresh(), "model.max_length=17"}, "the model has 16 positions");
  fails(1, {fresh(), "training.batch_size=99"}, "cannot fill one batch");
  fails(2, {fresh(), "parallel.expert=2"}, "has no experts");
  fails(
      1, {fresh(), "model.architecture=GPT2Model"}, "a GPT2Model has no head");
  fails(1, {fresh(), "task=lm"}, "language_model");
  fails(
      1,
      {fresh(), "model.max_length=17", "parallel.sequence=true"},
      "parallel.sequence has no effect");
  fails(
      2,
      {fresh(), "parallel.pipeline=2", "parallel.schedule=interleaved"},
      "parallel.chunks is 1; set it to 2");
  std::ofstream(folder_ / "short.bin") << "ab";
  fails(
      1,
      {fresh(), "data.heldout=" + (folder_ / "short.bin").string()},
      "short.bin' has 1 tokens");
  fails(
      1,
      {fresh(), R"(model.lora={"target_modules": ["c_attn"]})"},
      "an adapter needs existing weights");
  fails(
      2,
      {fresh(), "model.max_length=15", "parallel.context=2"},
      "model.max_length is 15");
  std::ofstream(folder_ / "odd.bin") << "abc";
  fails(
      1,
      {fresh(), "data.train=" + (folder_ / "odd.bin").string()},
      "is data.token_type right?");
  fails(
      1,
      {fresh(), "data.token_type=int32"},
      "token 0 (from 0) is 65536, but the model's vocabulary has 23 tokens");
}

} // namespace tessera::train_language_model_test

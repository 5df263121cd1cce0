// SPDX-License-Identifier: Apache-2.0
// `tessera train` and `tessera eval` as a user runs them.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/trained_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train_test {

namespace {

const char* const kConfig = "configs/finetune_minilm.json";

} // namespace

TEST(Train, LeavesARunFolderThatEvalScores) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data.jsonl";
  write_examples(data);
  const auto out = folder.path() / "run";
  const auto trained = run(
      {tests::program("tessera"),
       "launch",
       "--nproc",
       "2",
       "--",
       tests::program("tessera"),
       "train",
       kConfig,
       "training.batch_size=4",
       "training.max_steps=3",
       "data.train=" + data.string(),
       "data.heldout=" + data.string(),
       "output.folder=" + out.string()});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  for (const char* expected :
       {"memory of rank 0 of 2",
        "3/3",
        "held-out accuracy",
        "most frequent label: 50.0 %"}) {
    EXPECT_NE(trained.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << trained.output;
  }
  for (const char* file :
       {"config.json",
        "metrics.jsonl",
        "loss.svg",
        "result.json",
        "model/config.json",
        "model/model.safetensors",
        "model/vocab.txt"}) {
    EXPECT_TRUE(std::filesystem::exists(out / file)) << file;
  }
  const auto score = run({tests::program("tessera"), "eval", out.string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  EXPECT_NE(score.output.find("of 24 texts"), std::string::npos)
      << score.output;
  // The plan of memory for training would mean nothing here.
  EXPECT_EQ(score.output.find("memory of rank"), std::string::npos)
      << score.output;
}

// From the configuration alone, dropout included (without parallel.sequence,
// which pads texts to a multiple of the ranks: masks follow the shape).
TEST(Train, HasTheLossesOfOneRankUnderAnyLayout) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data.jsonl";
  write_examples(data);
  const auto train =
      [&](const std::string& name, int ranks, std::vector<std::string> layout) {
        std::vector<std::string> arguments{
            tests::program("tessera"),
            "launch",
            "--nproc",
            std::to_string(ranks),
            "--",
            tests::program("tessera"),
            "train",
            kConfig,
            "training.max_steps=3",
            "training.log_every=1",
            "training.clip_grad_norm=1",
            "data.train=" + data.string(),
            "data.heldout=" + data.string(),
            "output.folder=" + (folder.path() / name).string()};
        arguments.insert(arguments.end(), layout.begin(), layout.end());
        const auto result = run(arguments);
        EXPECT_EQ(result.exit_code, 0) << name << result.output;
        return losses_of(folder.path() / name);
      };
  const auto alone =
      train("alone", 1, {"training.batch_size=2", "training.accumulate=4"});
  ASSERT_EQ(alone.size(), 3U);
  const auto expect_same = [&](const std::string& name,
                               int ranks,
                               const std::vector<std::string>& layout) {
    const auto found = train(name, ranks, layout);
    ASSERT_EQ(found.size(), alone.size()) << name;
    for (size_t i = 0; i < alone.size(); ++i) {
      // Float32 sums in other orders, over three steps of AdamW.
      EXPECT_NEAR(found[i], alone[i], 2e-4) << name << ", step " << i + 1;
    }
  };
  expect_same(
      "pipeline",
      2,
      {"training.batch_size=2",
       "training.accumulate=4",
       "parallel.pipeline=2",
       "parallel.schedule=zb-h1"});
  expect_same(
      "mesh",
      4,
      {"training.batch_size=2",
       "training.accumulate=2",
       "parallel.shard=2",
       "parallel.tensor=2"});
  const auto refused = run(
      {tests::program("tessera"),
       "train",
       kConfig,
       "parallel.tensor=2",
       "output.folder=" + (folder.path() / "refused").string()});
  const auto on_two = [&](const std::string& override_text) {
    return run(
        {tests::program("tessera"),
         "launch",
         "--nproc",
         "2",
         "--",
         tests::program("tessera"),
         "train",
         kConfig,
         override_text,
         "output.folder=" + (folder.path() / "refused").string()});
  };
  EXPECT_NE(
      on_two("parallel.expert=2").output.find("has no experts"),
      std::string::npos);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(
      refused.output.find("tensor 2 does not fit the 1 rank of the job"),
      std::string::npos)
      << refused.output;
  EXPECT_NE(refused.output.find("launch --nproc 2"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "refused"));
}

TEST(Train, NamesTheWrongOverrideAndWhatIsMeant) {
  const std::pair<const char*, const char*> cases[] = {
      {"optimizer.learning_rate=1",
       "override 'optimizer.learning_rate=1': optimizer.learning_rate is not a "
       "known key; use 'optimizer.lr'"},
      {"batch_size=8", "did you mean 'training.batch_size'?"},
      {"fp16=true", "use 'precision.parameters=float16'"},
      {"zero_optimization.stage=2", "use 'sharding.zero_stage'"},
      {"training.epoch=1", "did you mean 'training.epochs'?"},
      {"data.metrics=f1", "did you mean 'data.metric'?"},
      {"data.packed=true",
       "data.packed is not a key of the task text_classification, but of "
       "supervised, preference; remove it"},
      {"optimizer.momentum=0.9",
       "optimizer.momentum is a key only for sgd, muon; remove it"},
      {"output.folder=", "output.folder is the string \"\"; name the folder"},
      {"optimizer.lr=abc",
       "override 'optimizer.lr=abc': optimizer.lr is the string \"abc\"; "
       "expected a number"}};
  for (const auto& [override_text, message] : cases) {
    const auto result =
        run({tests::program("tessera"), "train", kConfig, override_text});
    EXPECT_EQ(result.exit_code, 1) << override_text;
    EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  }
}

TEST(Train, ChecksItsTiersBeforeItLoadsTheModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"memory.nvme_path=/nowhere/disk", "'/nowhere/disk' is not a folder"},
      {"placement.optimizer=nvme", "memory.nvme_path is not set"},
      {"placement.activations=auto", "memory.activation_bytes"},
      {"offload.ratio=2", "offload.ratio is 2"}};
  for (const auto& [override_text, message] : cases) {
    const auto result = run(
        {tests::program("tessera"),
         "train",
         kConfig,
         "model.folder=/nowhere",
         override_text});
    EXPECT_EQ(result.exit_code, 1) << override_text;
    EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  }
}

TEST(Train, NamesAMissingModelAndABrokenLine) {
  const auto missing = run(
      {tests::program("tessera"), "train", kConfig, "model.folder=/nowhere"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.output.find("/nowhere"), std::string::npos)
      << missing.output;

  const TemporaryFolder folder;
  const auto data = folder.path() / "data.jsonl";
  std::ofstream(data) << "{\"text\": \"a\", \"label\": \"games\"}\n"
                      << "{\"text\": \"b\"}\n";
  const auto broken = run(
      {tests::program("tessera"),
       "train",
       kConfig,
       "data.train=" + data.string(),
       "output.folder=" + (folder.path() / "run").string()});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_NE(broken.output.find("data.jsonl:2"), std::string::npos)
      << broken.output;
  EXPECT_NE(broken.output.find("label"), std::string::npos) << broken.output;
}

} // namespace tessera::train_test

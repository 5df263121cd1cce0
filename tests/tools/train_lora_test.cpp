// SPDX-License-Identifier: Apache-2.0
// `tessera train` of an adapter, as a user runs it.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tools/run_forked.h"
#include "tools/trained_run.h"

#include <cmath>
#include <cstdio>

namespace tessera::train_lora_test {

namespace {

/// Four steps of eight texts on one rank.
class Runs {
 public:
  Runs() {
    write_examples(folder_ / "data.jsonl");
  }

  std::filesystem::path folder(const std::string& name) const {
    return folder_ / name;
  }

  tests::LaunchedJob::Result train(
      const std::string& name,
      int ranks,
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{
        "train",
        "configs/finetune_minilm_lora.json",
        "schedule.decay=constant",
        "schedule.warmup_steps=0",
        "training.max_steps=4",
        "training.epochs=2",
        "data.train=" + folder("data.jsonl").string(),
        "data.heldout=" + folder("data.jsonl").string(),
        "output.folder=" + folder(name).string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    auto result = tests::run_forked(ranks, arguments);
    EXPECT_EQ(result.exit_code, 0) << name << result.output;
    return result;
  }

  std::string adapter(const std::string& name) const {
    return runtime::read_text_file(
        folder(name) / "adapter/adapter_model.safetensors");
  }

 private:
  TemporaryFolder folder_;
};

const std::vector<std::string> kEight{
    "training.batch_size=2",
    "training.accumulate=4"};

std::vector<std::string> operator+(
    std::vector<std::string> a,
    const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

} // namespace

TEST(TrainLora, LeavesAnAdapterThatEvalScores) {
  const Runs runs;
  const auto trained = runs.train("run", 2, {"training.batch_size=4"});
  EXPECT_NE(
      trained.output.find("LoRA of rank 8 in 36 layers"), std::string::npos)
      << trained.output;
  EXPECT_NE(trained.output.find("adapter/\n"), std::string::npos)
      << trained.output;
  const auto folder = runs.folder("run");
  EXPECT_FALSE(std::filesystem::exists(folder / "model"));
  std::ifstream file(folder / "adapter/adapter_config.json");
  const auto config = nlohmann::json::parse(file);
  EXPECT_EQ(config.at("task_type"), "SEQ_CLS");
  EXPECT_EQ(config.at("lora_alpha"), 16);
  EXPECT_EQ(config.at("base_model_name_or_path"), "models/minilm");
  // A tenth of what the model itself takes, with the classifier.
  EXPECT_LT(runs.adapter("run").size(), size_t{3} << 20);
  // Texts have the tokens of the model under the adapter.
  for (const auto& path : {folder, folder / "adapter"}) {
    const auto tokens =
        tests::run_forked(1, {"tokens", path.string(), "hello"});
    EXPECT_EQ(tokens.exit_code, 0) << tokens.output;
  }
  std::ifstream result(folder / "result.json");
  const double accuracy = nlohmann::json::parse(result).at("heldout_accuracy");
  char expected[64];
  std::snprintf(
      expected, sizeof(expected), "accuracy %.1f %% of 24", 100 * accuracy);
  // The adapter that was exported, and the checkpoint that it is of.
  for (const std::vector<std::string>& from :
       {std::vector<std::string>(), {"--from", "step-4"}}) {
    const auto score = tests::run_forked(
        1, std::vector<std::string>{"eval", folder.string()} + from);
    EXPECT_EQ(score.exit_code, 0) << score.output;
    EXPECT_NE(score.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << score.output;
  }
}

// The base in four bits: the same under any number of ranks, and scored so.
TEST(TrainLora, RestsOnABaseInBlocks) {
  const Runs runs;
  const std::vector<std::string> in_blocks{
      "precision.frozen_weights=nf4_double"};
  runs.train("exact", 1, kEight);
  runs.train("alone", 1, kEight + in_blocks);
  runs.train(
      "divided",
      2,
      {"training.batch_size=2", "training.accumulate=2", in_blocks.front()});
  const auto exact = losses_of(runs.folder("exact"));
  const auto alone = losses_of(runs.folder("alone"));
  const auto divided = losses_of(runs.folder("divided"));
  ASSERT_EQ(alone.size(), 4U);
  ASSERT_EQ(divided.size(), 4U);
  EXPECT_GT(std::abs(alone[0] - exact[0]), 1e-4);
  EXPECT_NEAR(alone[0], exact[0], 0.1);
  for (size_t i = 0; i < alone.size(); ++i) {
    // Float32 sums in other orders, over four steps of AdamW.
    EXPECT_NEAR(divided[i], alone[i], 5e-4) << "step " << i + 1;
  }
  // On the base as it was trained on.
  std::ifstream result(runs.folder("alone") / "result.json");
  const double loss = nlohmann::json::parse(result).at("heldout_loss");
  char expected[64];
  std::snprintf(expected, sizeof(expected), "loss %.4f", loss);
  const auto score =
      tests::run_forked(1, {"eval", runs.folder("alone").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  EXPECT_NE(score.output.find(expected), std::string::npos)
      << expected << " is not in:\n"
      << score.output;
}

TEST(TrainLora, HasTheLossesOfOneRankUnderAnyLayout) {
  const Runs runs;
  runs.train(
      "alone", 1, kEight + std::vector<std::string>{"model.lora.merge=true"});
  EXPECT_TRUE(std::filesystem::exists(runs.folder("alone") / "model"));
  // It has the adapter in it.
  const std::string run = runs.folder("alone").string();
  const auto twice = tests::run_forked(
      1,
      {"convert",
       "--from",
       run,
       "--merge-lora",
       run + "/adapter",
       "--to",
       run + "-merged"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_NE(twice.output.find("which has the adapter"), std::string::npos)
      << twice.output;
  const auto alone = losses_of(runs.folder("alone"));
  ASSERT_EQ(alone.size(), 4U);
  const auto expect_same = [&](const std::string& name,
                               const std::vector<std::string>& layout) {
    runs.train(name, 2, layout);
    const auto found = losses_of(runs.folder(name));
    ASSERT_EQ(found.size(), alone.size()) << name;
    for (size_t i = 0; i < alone.size(); ++i) {
      // Float32 sums in other orders, over four steps of AdamW.
      EXPECT_NEAR(found[i], alone[i], 5e-4) << name << ", step " << i + 1;
    }
  };
  expect_same("tensor", kEight + std::vector<std::string>{"parallel.tensor=2"});
  expect_same(
      "pipeline", kEight + std::vector<std::string>{"parallel.pipeline=2"});
}

TEST(TrainLora, GoesOnFromACheckpoint) {
  const Runs runs;
  runs.train("whole", 1, kEight);
  const auto saving =
      kEight + std::vector<std::string>{"training.save_every=2"};
  runs.train(
      "again", 1, saving + std::vector<std::string>{"training.max_steps=2"});
  EXPECT_NE(runs.adapter("again"), runs.adapter("whole"));
  runs.train(
      "again", 1, saving + std::vector<std::string>{"training.resume=true"});
  EXPECT_EQ(runs.adapter("again"), runs.adapter("whole"));

  // One folder of a checkpoint: the adapter, or the model with it.
  const auto run = runs.folder("again");
  const auto fails = tests::run_forked(
      1,
      {"convert",
       "--from",
       run.string(),
       "--to",
       runs.folder("converted").string()});
  EXPECT_NE(
      fails.output.find(
          "`tessera export " + run.string() + " model.lora.merge=true`"),
      std::string::npos)
      << fails.output;
  for (const bool merges : {false, true}) {
    const auto to = runs.folder(merges ? "merged" : "adapter");
    const auto exported = tests::run_forked(
        1,
        {"export",
         run.string(),
         merges ? "model.lora.merge=true" : "model.lora.merge=false",
         "--to",
         to.string()});
    EXPECT_EQ(exported.exit_code, 0) << exported.output;
    EXPECT_EQ(std::filesystem::exists(to / "config.json"), merges);
    EXPECT_EQ(std::filesystem::exists(to / "adapter_config.json"), !merges);
    EXPECT_FALSE(std::filesystem::is_directory(to / "model"));
  }
}

TEST(TrainLora, LeavesNoModelOfAnEarlierRun) {
  const Runs runs;
  const auto folder = runs.folder("run");
  const std::vector<std::string> merging{"model.lora.merge=true"};
  const std::vector<std::string> few{
      "training.max_steps=1", "output.overwrite=true"};
  runs.train("run", 1, merging + few);
  EXPECT_TRUE(std::filesystem::exists(folder / "model"));
  const auto again = runs.train("run", 1, few);
  EXPECT_FALSE(std::filesystem::exists(folder / "model"));
  EXPECT_NE(again.output.find("removed '"), std::string::npos) << again.output;
  // The whole model in place of an adapter.
  runs.train("run", 1, few + std::vector<std::string>{"model.lora=null"});
  EXPECT_TRUE(std::filesystem::exists(folder / "model"));
  EXPECT_FALSE(std::filesystem::exists(folder / "adapter"));
  // A model that the run starts from stays.
  const auto based = runs.train(
      "run",
      1,
      few + std::vector<std::string>{"model.folder=" + folder.string()});
  EXPECT_TRUE(std::filesystem::exists(folder / "model"));
  EXPECT_TRUE(std::filesystem::exists(folder / "adapter"));
  EXPECT_NE(based.output.find("is no result of this run"), std::string::npos)
      << based.output;
}

TEST(TrainLora, SaysWhatIsWrong) {
  const auto fails = [](const std::string& override_text,
                        const std::string& expected) {
    const auto result = tests::run_forked(
        1,
        {"train",
         "configs/finetune_minilm_lora.json",
         override_text,
         "output.folder=/nowhere/run"});
    EXPECT_EQ(result.exit_code, 1) << override_text;
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
  };
  fails("model.lora.r=0", "model.lora.r");
  fails("model.lora.bias=some", "lora_only");
  fails("model.lora.target_modules=[]", "all-linear");
  fails("model.lora.lora_alpha=3", "model.lora.alpha");
}

} // namespace tessera::train_lora_test

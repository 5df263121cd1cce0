// SPDX-License-Identifier: Apache-2.0
// Whole runs of the task image_folder. The ranks are forked: in a process of
// its own, before LibTorch has threads.
#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/run_training.h"
#include "zoo/image_files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::image_training_test {

namespace {

namespace fs = std::filesystem;

class ImageRuns : public ::testing::Test {
 protected:
  ImageRuns() {
    zoo::write_tinted_images(train(), 24, 0);
    zoo::write_tinted_images(folder_ / "heldout", 8, 1000);
    std::ofstream(folder_ / "model.json") << R"({
        "model_type": "vit", "architectures": ["ViTForImageClassification"],
        "image_size": 16, "patch_size": 8, "hidden_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0})";
  }

  TrainingConfig config(
      int64_t batch_size,
      const std::vector<std::string>& overrides = {}) const {
    const fs::path file = folder_ / "train.json";
    const nlohmann::json json = {
        {"task", "image_folder"},
        {"model", {{"config", (folder_ / "model.json").string()}}},
        {"data",
         {{"train", train().string()},
          {"heldout", (folder_ / "heldout").string()},
          {"views", {{"area", {0.3, 1}}}}}},
        {"optimizer", {{"lr", 0.003}}},
        {"schedule", {{"warmup_steps", 0}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", batch_size},
          {"epochs", 10},
          {"max_steps", 40}}},
        {"output", {{"folder", run().string()}}}};
    runtime::write_file_atomically(file, json.dump());
    return read_training_config(file, overrides);
  }

  fs::path train() const {
    return folder_ / "train";
  }
  fs::path run() const {
    return folder_ / "run";
  }

  TemporaryFolder folder_;
};

} // namespace

TEST_F(ImageRuns, TrainAViTThatTellsColorsOnOneRankAsOnTwo) {
  std::vector<double> losses;
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    runtime::remove_tree(run());
    tests::on_ranks(ranks, [&] {
      const TrainingResult result = run_training(config(8 / ranks));
      ASSERT_TRUE(result.score.has_value());
      EXPECT_EQ(result.score->values.at("heldout_accuracy"), 1.0)
          << result.score->text;
      EXPECT_EQ(result.score->values.at("heldout_examples"), 16);
      EXPECT_EQ(result.score->values.at("majority_baseline"), 0.5);
      EXPECT_EQ(evaluate_run(run()).text, result.score->text);
    });
    const auto result = runtime::parse_json(
        runtime::read_text_file(run() / "result.json"), "result.json");
    losses.push_back(result.at("heldout_loss").get<double>());
    const auto model = runtime::parse_json(
        runtime::read_text_file(run() / "model/config.json"), "config.json");
    EXPECT_EQ(model.at("id2label").at("1"), "red");
    const auto images = runtime::parse_json(
        runtime::read_text_file(run() / "model/preprocessor_config.json"), "");
    EXPECT_EQ(images.at("center_crop"), 0.875);
    EXPECT_EQ(images.at("image_mean").at(0), 0.485);
  }
  // Below log(2), and equal up to the order of sums: other views would move it
  // in its first digits.
  EXPECT_LT(losses.at(0), 0.3);
  EXPECT_NEAR(losses.at(0), losses.at(1), 1e-4 * losses.at(0));
}

TEST_F(ImageRuns, CheckImagesBeforeTheFirstStep) {
  std::ofstream(folder_ / "heldout" / "red" / "3.png") << "broken";
  tests::on_ranks(1, [&] {
    expect_error(
        [&] { run_training(config(8)); },
        {"heldout/red/3.png'", "1 of 16 images are bad"});
    EXPECT_FALSE(fs::exists(run()));
    const auto scored = [&](const std::string& metric) {
      return run_training(config(
          8,
          {"data.skip_bad_images=true",
           "training.max_steps=2",
           "training.evaluate_every=1000",
           "training.best_metric=" + metric}));
    };
    expect_error(
        [&] { scored("majority_baseline"); },
        {"training.best_metric is 'majority_baseline'", "accuracy, loss"});
    EXPECT_FALSE(fs::exists(run()));
    const auto result = scored("accuracy");
    EXPECT_EQ(result.score->values.at("heldout_examples"), 15);
  });
}

TEST_F(ImageRuns, KeysOfOtherTasksAreNamed) {
  const auto refused = [&](const std::string& override_text,
                           std::initializer_list<const char*> parts) {
    expect_error([&] { config(4, {override_text}); }, parts);
  };
  refused(
      "model.max_length=3",
      {"model.max_length is not a key of the task image_folder, but of "
       "text_classification",
       "remove it"});
  refused(
      "max_length=3",
      {"max_length is not a key of the task image_folder, nor is "
       "'model.max_length', but of text_classification"});
}

TEST_F(ImageRuns, HoldOutAShareAndRefuseWhatDoesNotFit) {
  tests::on_ranks(1, [&] {
    const auto result = run_training(config(
        8,
        {"data.heldout=",
         "data.heldout_share=0.25",
         "data.mixup=0.2",
         "training.max_steps=3"}));
    EXPECT_EQ(result.score->values.at("heldout_examples"), 12);
    EXPECT_EQ(evaluate_run(run()).text, result.score->text);
  });
  expect_error(
      [&] { config(8, {"data.heldout_share=0.25"}); }, {"heldout_share"});
  expect_error(
      [&] { config(8, {"data.views.jitter=[1, 2]"}); }, {"jitter", "four"});
  expect_error(
      [&] { config(8, {"data.views.area=[0.5, 0.2]"}); }, {"area", "smaller"});
}

} // namespace tessera::tasks::image_training_test

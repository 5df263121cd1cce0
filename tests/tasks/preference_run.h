// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of tasks on pairs of answers, of a small LLaMA.

#include "support/forked_ranks.h"
#include "tessera/tasks/run_training.h"
#include "zoo/lora_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks::preference_test {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

inline at::Tensor numbers_in(const json& values) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble);
}

/// To the precision of float32.
inline void expect_close(
    const at::Tensor& found,
    const json& wanted,
    const std::string& name) {
  const at::Tensor values = numbers_in(wanted);
  EXPECT_TRUE(torch::allclose(found.to(torch::kDouble), values, 1e-5, 1e-6))
      << name << ": " << found << "\n"
      << values;
}

class PreferenceRun : public ::testing::Test {
 protected:
  void write_model(const std::string& chat_template = "") const {
    const auto words =
        text::Tokenizer::from_file(fixture("tokenizers") / "llama2.json");
    json config = read_json(fixture("models") / "llama" / "config.json");
    config["vocab_size"] = words.size();
    config["pad_token_id"] = 0;
    config["eos_token_id"] = *words.id_of("</s>");
    config["max_position_embeddings"] = 96;
    torch::manual_seed(3);
    zoo::save_pretrained(*zoo::from_config(config), base_);
    fs::copy(
        fixture("tokenizers") / "llama2.json",
        base_ / "tokenizer.json",
        fs::copy_options::overwrite_existing);
    json settings{{"eos_token", "</s>"}};
    if (!chat_template.empty()) {
      settings["chat_template"] = chat_template;
    }
    std::ofstream(base_ / "tokenizer_config.json") << settings;
  }

  std::string file(const std::string& name, const std::vector<json>& rows)
      const {
    std::ofstream out(folder_ / name);
    for (const json& row : rows) {
      out << row << "\n";
    }
    return (folder_ / name).string();
  }

  TrainingConfig config(const Names& overrides = {}) const {
    const json values = {
        {"task", task_},
        {"model",
         {{"folder", base_.string()},
          {"max_length", 96},
          {"lora", {{"r", 4}, {"target_modules", "all-linear"}}}}},
        {"data", {{"train", rows_}, {"heldout", rows_}}},
        {"optimizer", {{"lr", 0.01}}},
        {"schedule", {{"decay", "constant"}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", 2},
          {"epochs", 20},
          {"seed", 5}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(folder_ / "train.json", values.dump());
    return read_training_config(folder_ / "train.json", overrides);
  }

  /// Answers of different lengths.
  static std::vector<json> unequal_texts() {
    std::vector<json> rows;
    std::string answer = "yes";
    for (int i = 0; i < 8; ++i) {
      answer += i % 3 == 0 ? " it is so" : " and";
      rows.push_back(
          {{"prompt", i % 2 == 0 ? "is mail good?" : "are lines?"},
           {"chosen", answer},
           {"rejected", i % 2 == 0 ? "no way at all" : "no"}});
    }
    return rows;
  }

  /// Trains the whole model for three steps of four rows, into folders by the
  /// layout: the ranks of the job, and one rank with each division.
  void train_in_layouts(const Names& overrides) const {
    const auto run = [&](const std::string& name, const Names& layout) {
      Names all{
          "model.lora=null",
          "data.heldout=[]",
          "optimizer.type=sgd",
          "optimizer.lr=0.2",
          "schedule.warmup_fraction=0",
          "training.epochs=3",
          "training.max_steps=3",
          "training.log_every=1",
          "output.folder=" + (folder_ / name).string()};
      all.insert(all.end(), overrides.begin(), overrides.end());
      all.insert(all.end(), layout.begin(), layout.end());
      run_training(config(all));
    };
    tests::on_ranks(1, [&] {
      run("together", {"training.batch_size=4"});
      run("apart", {"training.batch_size=1", "training.accumulate=4"});
    });
    tests::on_ranks(2, [&] {
      run("ranks", {"training.batch_size=1", "training.accumulate=2"});
    });
  }

  /// The losses of the steps of a run.
  std::vector<double> losses_of(const std::string& name) const {
    std::ifstream lines(folder_ / name / "metrics.jsonl");
    std::vector<double> losses;
    for (std::string line; std::getline(lines, line);) {
      if (const json values = json::parse(line); values.contains("loss")) {
        losses.push_back(values["loss"]);
      }
    }
    return losses;
  }

  /// Losses of later steps follow from gradients of earlier ones.
  void expect_same_in_layouts(const std::string& label) const {
    const auto together = losses_of("together");
    ASSERT_EQ(together.size(), 3U) << label;
    EXPECT_GT(std::abs(together[2] - together[0]), 1e-3) << label;
    for (const char* name : {"apart", "ranks"}) {
      const auto losses = losses_of(name);
      ASSERT_EQ(losses.size(), 3U) << label;
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], together[i], 2e-5 * std::abs(together[i]))
            << label << " " << name << ", step " << i + 1;
      }
    }
  }

  static std::vector<json> texts() {
    std::vector<json> rows;
    for (const char* word : {"mail", "server", "numbers", "lines"}) {
      rows.push_back(
          {{"prompt", std::string("is ") + word + " good?"},
           {"chosen", "yes it is"},
           {"rejected", "no way"}});
    }
    return rows;
  }

  /// @param task "preference" or "reward".
  explicit PreferenceRun(std::string task) : task_(std::move(task)) {}

  const std::string task_;
  const TemporaryFolder folder_;
  const fs::path base_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
  const std::string rows_ = file("rows.jsonl", texts());
};

} // namespace tessera::tasks::preference_test

// SPDX-License-Identifier: Apache-2.0
// Short sequences first: lengths as DeepSpeed's schedules have them, what
// belongs to a cut sequence, and runs that resume.
#include "tessera/tasks/sequence_curriculum.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/tasks/run_training.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::sequence_curriculum_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

} // namespace

TEST(SequenceCurriculum, HasTheLengthsOfDeepSpeed) {
  CurriculumOptions options{.min_length = 8, .steps = 10, .multiple = 8};
  std::vector<int64_t> lengths;
  for (int64_t step = 0; step < 12; ++step) {
    lengths.push_back(curriculum_length(options, 70, step));
  }
  // fixed_linear: floor(step / 10 * 62 + 8), less the rest of 8.
  EXPECT_EQ(
      lengths,
      (std::vector<int64_t>{8, 8, 16, 24, 32, 32, 40, 48, 56, 56, 70, 70}));
  options.growth = CurriculumGrowth::kRoot;
  lengths.clear();
  for (int64_t step = 0; step < 11; ++step) {
    lengths.push_back(curriculum_length(options, 70, step));
  }
  // fixed_root of degree 2: floor(sqrt(step / 10) * 62 + 8).
  EXPECT_EQ(
      lengths,
      (std::vector<int64_t>{8, 24, 32, 40, 40, 48, 56, 56, 56, 64, 70}));
}

TEST(SequenceCurriculum, CutsAllThatBelongsToTokens) {
  zoo::ModelInput batch;
  batch.input_ids = torch::arange(24).view({2, 12});
  batch.labels = batch.input_ids + 1;
  batch.attention_mask = torch::ones({2, 12}, torch::kLong);
  batch.position_ids = torch::arange(12).view({1, 12});
  batch.others["document_ids"] =
      torch::arange(24).view({2, 12}).gt(7).to(torch::kLong);
  const zoo::ModelInput cut = first_tokens(batch, 5);
  const auto full = batch.named();
  ASSERT_EQ(cut.named().size(), full.size());
  for (const auto& [name, tensor] : cut.named()) {
    EXPECT_TRUE(torch::equal(tensor, full.at(name).slice(1, 0, 5))) << name;
  }
  batch.labels = torch::zeros({2, 12}); // classes, by chance as many
  EXPECT_EQ(first_tokens(batch, 5).labels.size(1), 12);
  EXPECT_EQ(first_tokens(batch, 12).input_ids.size(1), 12);
}

// Lengths follow the step in a run that resumes, also on other ranks.
TEST(SequenceCurriculum, GoesOnWhereARunResumes) {
  const TemporaryFolder folder;
  const auto run = [&](int ranks,
                       const std::string& name,
                       const std::vector<std::string>& more) {
    tests::on_ranks(ranks, [&] {
      std::vector<std::string> overrides{
          "output.folder=" + (folder / name).string(),
          "training.batch_size=" + std::to_string(4 / ranks)};
      overrides.insert(overrides.end(), more.begin(), more.end());
      run_training(read_training_config(folder / "train.json", overrides));
    });
    std::vector<double> tokens;
    for (const auto& line : engine::read_metrics(folder / name)) {
      tokens.push_back(line.tokens);
    }
    return tokens;
  };
  const json values = {
      {"task", "language_model"},
      {"model",
       {{"config", (fixture("models") / "gpt2/config.json").string()},
        {"max_length", 20}}},
      {"data", {{"train", (folder / "tokens.bin").string()}}},
      {"schedule", {{"decay", "constant"}}},
      {"training",
       {{"clip_grad_norm", 0},
        {"max_steps", 6},
        {"curriculum", {{"min_length", 4}, {"steps", 5}, {"multiple", 4}}}}},
      {"output", {{"folder", "unset"}}}};
  std::ofstream(folder / "train.json") << values;
  std::ofstream tokens(folder / "tokens.bin", std::ios::binary);
  for (int i = 0; i < 1000; ++i) {
    const auto token = static_cast<uint16_t>((i * i) % 61);
    tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  tokens.close();
  const std::vector<double> all{16, 16, 32, 48, 64, 80}; // 4 rows
  EXPECT_EQ(run(1, "whole", {}), all);
  EXPECT_EQ(
      run(2, "part", {"training.max_steps=3", "training.save_every=3"}),
      std::vector<double>(all.begin(), all.begin() + 3));
  EXPECT_EQ(run(1, "part", {"training.resume=true"}), all);
  EXPECT_EQ(run(1, "half", {"training.max_steps=3"}).size(), 3U);
  EXPECT_EQ(run(1, "half", {"training.resume=true"}), all);
  EXPECT_EQ(
      runtime::read_text_file(folder / "half/model/model.safetensors"),
      runtime::read_text_file(folder / "whole/model/model.safetensors"));
}

TEST(SequenceCurriculum, WhatDoesNotFitIsNamed) {
  expect_error(
      [] { check({.min_length = 64, .multiple = 8}, 32); },
      {"min_length is 64", "model.max_length is 32"});
  expect_error(
      [] { check({.min_length = 4, .multiple = 8}, 32); }, {"multiple, 8"});
}

} // namespace tessera::tasks::sequence_curriculum_test

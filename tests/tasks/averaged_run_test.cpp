// SPDX-License-Identifier: Apache-2.0
// A run scores and exports the averages of its weights, at once or afterwards.
#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/export_run.h"
#include "tessera/tasks/run_training.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::averaged_run_test {

using nlohmann::json;

TEST(AveragedRun, ScoresAndExportsAverages) {
  const TemporaryFolder folder;
  std::ofstream tokens(folder / "tokens.bin", std::ios::binary);
  for (int i = 0; i < 600; ++i) {
    const auto token = static_cast<uint16_t>((i * i) % 61);
    tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  tokens.close();
  const json values = {
      {"task", "language_model"},
      {"model",
       {{"config", (fixture("models") / "gpt2/config.json").string()},
        {"max_length", 16}}},
      {"data",
       {{"train", (folder / "tokens.bin").string()},
        {"heldout", (folder / "tokens.bin").string()}}},
      {"optimizer", {{"lr", 0.05}, {"ema_decay", 0.5}}},
      {"schedule", {{"decay", "constant"}}},
      {"training",
       {{"clip_grad_norm", 0},
        {"max_steps", 4},
        {"evaluate_every", 4},
        {"batch_size", 2}}},
      {"output", {{"folder", "unset"}}}};
  std::ofstream(folder / "train.json") << values;
  const auto run = [&](const std::string& name,
                       const std::vector<std::string>& more) {
    std::vector<std::string> overrides{
        "output.folder=" + (folder / name).string()};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return run_training(read_training_config(folder / "train.json", overrides));
  };
  const auto weights = [&](const std::string& model) {
    return runtime::read_text_file(folder / model / "model.safetensors");
  };
  tests::on_ranks(2, [&] {
    const auto averaged = run("averaged", {"training.ema_evaluate=true"});
    const auto plain = run("plain", {});
    EXPECT_NE(weights("averaged/model"), weights("plain/model"));
    const auto loss = [](const nlohmann::ordered_json& score) {
      return score.at("heldout_loss").get<double>();
    };
    // Layers of models that are not newly initialized sum in another order.
    EXPECT_NEAR(
        loss(evaluate_run(folder / "averaged").values),
        loss(averaged.score->values),
        1e-6);
    // So is the checkpoint, whose weights are not the averages.
    EXPECT_NEAR(
        loss(evaluate_run(folder / "averaged", {}, "step-4").values),
        loss(averaged.score->values),
        1e-6);
    // So it is with adapters: an exported model has its own.
    for (const char* key :
         {"model.lora={\"target_modules\":\"all-linear\"}",
          "model.lora.alpha=32",
          "model.lora="}) {
      expect_error(
          [&] { evaluate_run(folder / "plain", {key}); },
          {key, "has no effect", "--from"});
    }
    // An exported model is one of them.
    expect_error(
        [&] { evaluate_run(folder / "plain", {"training.ema_evaluate=true"}); },
        {"training.ema_evaluate=true", "--from"});
    EXPECT_NEAR(
        loss(evaluate_run(
                 folder / "plain", {"training.ema_evaluate=true"}, "step-4")
                 .values),
        loss(averaged.score->values),
        1e-6);
    EXPECT_GT(
        std::abs(loss(plain.score->values) - loss(averaged.score->values)),
        1e-3);
    // Of the same step, while the run trained.
    EXPECT_EQ(
        engine::read_metrics(folder / "averaged").back().heldout.front().second,
        loss(averaged.score->values));
    ExportOptions options;
    options.run = folder / "plain";
    options.to = folder / "later";
    options.overrides = {"training.ema_evaluate=true"};
    export_run(options);
    EXPECT_EQ(weights("later"), weights("averaged/model"));
    expect_error(
        [&] {
          run("none", {"training.ema_evaluate=true", "optimizer.ema_decay=0"});
        },
        {"ema_evaluate", "optimizer.ema_decay"});
  });
}

} // namespace tessera::tasks::averaged_run_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/run_changes.h"

#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/models/pretrained.h"

#include <gtest/gtest.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks::run_changes_test {

// An adapter is of no use on other weights than it was trained on.
TEST(RunChanges, OfTheWeightsUnderAnAdapter) {
  const TemporaryFolder folder;
  const auto original = fixture("models") / "bert_classifier";
  const auto model = zoo::from_pretrained(original);
  zoo::save_pretrained(*model, folder / "same");
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      parameter.add_(0.5);
    }
  }
  zoo::save_pretrained(*model, folder / "other");
  runtime::write_file_atomically(folder / "rows.jsonl", "{}\n");
  const auto described = [&](const std::filesystem::path& base, bool adapts) {
    nlohmann::json json{
        {"task", "text_classification"},
        {"model", {{"folder", base.string()}}},
        {"data", {{"train", (folder / "rows.jsonl").string()}}},
        {"output", {{"folder", (folder / "run").string()}}}};
    if (adapts) {
      json["model"]["lora"] = {{"r", 2}, {"target_modules", {"query"}}};
    }
    runtime::write_file_atomically(folder / "train.json", json.dump());
    return describe_run(read_training_config(folder / "train.json"));
  };
  const auto refused = [&](const std::filesystem::path& base, bool adapts) {
    return changes_between(
               described(folder / "same", adapts), described(base, adapts))
        .refused;
  };
  EXPECT_EQ(refused(folder / "same", true), std::vector<std::string>());
  const auto others = refused(folder / "other", true);
  ASSERT_EQ(others.size(), 1U);
  EXPECT_NE(others[0].find("model.folder: the weights"), std::string::npos);
  // A checkpoint has all weights that are trained.
  EXPECT_EQ(refused(folder / "other", false), std::vector<std::string>());
  // One that does not know what it was trained on.
  auto old = described(folder / "same", true);
  old.erase("base");
  EXPECT_TRUE(
      changes_between(old, described(folder / "other", true)).refused.empty());
}

} // namespace tessera::tasks::run_changes_test

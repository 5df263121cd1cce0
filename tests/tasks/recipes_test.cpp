// SPDX-License-Identifier: Apache-2.0
// The recipes in configs/ are read without an error, and are what they say.
#include "support/paths.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

namespace tessera::tasks::recipes_test {

namespace {

std::filesystem::path configs() {
  return std::filesystem::path(tests::source_dir()) / "configs";
}

/// The number of parameters of models/NAME.json.
int64_t parameters_of(const std::string& name) {
  const auto path = configs() / "models" / (name + ".json");
  const auto json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  const auto model = lazy([&] { return zoo::from_config(json); });
  int64_t count = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    count += parameter.numel();
  }
  return count;
}

} // namespace

TEST(Recipes, AreRead) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs())) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    SCOPED_TRACE(entry.path());
    ++recipes;
    EXPECT_NO_THROW(read_training_config(entry.path()));
  }
  EXPECT_GE(recipes, 3);
}

TEST(Recipes, NamePathsFromTheirFolder) {
  const std::string root = tests::source_dir() + "/";
  for (const auto& entry : std::filesystem::directory_iterator(configs())) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    SCOPED_TRACE(entry.path());
    testing::internal::CaptureStderr();
    const TrainingConfig config = read_training_config(entry.path());
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    std::vector<std::string> paths{
        config.model_folder.string(), config.model_config.string()};
    for (const auto& files : {config.data.train, config.data.heldout}) {
      paths.insert(paths.end(), files.begin(), files.end());
    }
    for (const std::string& path : paths) {
      EXPECT_TRUE(
          path.empty() || path.starts_with("/usr/lib/") ||
          (path.starts_with(root) && !path.starts_with(root + "configs/")) ||
          path.starts_with(root + "configs/models/"))
          << path;
    }
    EXPECT_TRUE(
        config.model_config.empty() ||
        std::filesystem::exists(config.model_config))
        << config.model_config;
  }
}

TEST(Recipes, TheGptOf13BillionHasAsMany) {
  constexpr int64_t h = 5120;
  EXPECT_EQ(
      parameters_of("gpt_13b"),
      (50257 + 2048) * h + 40 * (12 * h * h + 13 * h) + 2 * h);
}

TEST(Recipes, GlmLargeHas335Million) {
  constexpr int64_t h = 1024;
  const int64_t count = parameters_of("glm_large");
  EXPECT_EQ(count, (30592 + 2 * 513) * h + 24 * (12 * h * h + 13 * h) + 2 * h);
  EXPECT_EQ(count / 1000000, 334); // published as 335M
}

TEST(Recipes, GlmLargeDecaysNeitherBiasesNorNorms) {
  // As the authors' glm_get_params_for_weight_decay_optimization().
  const TrainingConfig config =
      read_training_config(configs() / "pretrain_glm_large.json");
  const auto path = configs() / "models" / "glm_large.json";
  const auto json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  const auto model = lazy([&] { return zoo::from_config(json); });
  for (const auto& item : model->named_parameters()) {
    double decay = config.engine.optimizer.weight_decay.value_or(-1);
    for (const ParameterRule& rule : config.engine.optimizer.parameters) {
      if (std::regex_match(item.key(), std::regex(rule.pattern))) {
        decay = rule.weight_decay.value_or(decay);
      }
    }
    EXPECT_EQ(decay, item.value().dim() == 1 ? 0 : 0.1) << item.key();
  }
}

} // namespace tessera::tasks::recipes_test

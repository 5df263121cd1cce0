// SPDX-License-Identifier: Apache-2.0
// The recipes in configs/ are read without an error, and are what they say.
#include "support/paths.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/examples_config.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/language_model_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace tessera::zoo::recipes_test {

namespace {

std::filesystem::path configs() {
  return std::filesystem::path(tests::source_dir()) / "configs";
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
    const auto json = runtime::parse_json(
        runtime::read_text_file(entry.path()), entry.path().string());
    if (json.at("task") == "language_model") {
      EXPECT_NO_THROW(read_language_model_config(entry.path(), {}, nullptr));
    } else if (json.at("task") == "examples") {
      EXPECT_NO_THROW(read_examples_config(entry.path(), {}, nullptr));
    } else {
      EXPECT_NO_THROW(read_finetune_config(entry.path(), {}, nullptr));
    }
  }
  EXPECT_GE(recipes, 3);
}

TEST(Recipes, TheGptOf13BillionHasAsMany) {
  const auto path = configs() / "models/gpt_13b.json";
  const auto json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  const auto model = lazy([&] { return zoo::from_config(json); });
  int64_t count = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    count += parameter.numel();
  }
  constexpr int64_t h = 5120;
  EXPECT_EQ(count, (50257 + 2048) * h + 40 * (12 * h * h + 13 * h) + 2 * h);
}

} // namespace tessera::zoo::recipes_test

// SPDX-License-Identifier: Apache-2.0
// The recipes in configs/ are read without an error, and are what they say.
#include "support/paths.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/training_config.h"

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
    EXPECT_NO_THROW(read_training_config(entry.path()));
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

// SPDX-License-Identifier: Apache-2.0
// Every model of the zoo that has a loss is trained from a configuration, alone
// and on ranks that divide it.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/safetensors.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::train_zoo_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 8;

fs::path fixtures() {
  return fs::path(tests::source_dir()) / "tests/zoo/fixtures/models";
}

/// Of all fixtures whose inputs are examples. Without a head there is no loss;
/// the other one's images are not of the size in its configuration.
std::vector<std::string> trainable() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(fixtures())) {
    std::ifstream file(entry.path() / "config.json");
    const std::string architecture =
        nlohmann::json::parse(file).at("architectures").at(0);
    const std::string name = entry.path().filename();
    const bool has_head =
        !name.ends_with("_base") &&
        (!architecture.ends_with("Model") || architecture == "GPT2LMHeadModel");
    if (has_head && name != "mae_wide") {
      names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

/// The inputs of a fixture, again and again.
void write_inputs(const fs::path& to, const std::string& fixture) {
  constexpr const char* kInput = "in.";
  const auto file = runtime::SafetensorsFile::open(
      fixtures() / fixture / "expected.safetensors");
  std::vector<runtime::SafetensorsSpec> specs;
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with(kInput)) {
      continue;
    }
    const std::string name = entry.name.substr(3);
    auto shape = entry.shape;
    const size_t row = entry.data.size() / static_cast<size_t>(shape.front());
    shape.front() = kRows;
    auto& rows = bytes[name];
    while (rows.size() < row * kRows) {
      const auto taken = entry.data.first(
          std::min(entry.data.size(), row * kRows - rows.size()));
      rows.insert(rows.end(), taken.begin(), taken.end());
    }
    if (name.ends_with("_positions")) {
      // Some of the fixtures' answers are not in the text, whose padding is on
      // either side: here all are.
      const std::vector<int64_t> places(rows.size() / sizeof(int64_t), 5);
      std::memcpy(rows.data(), places.data(), rows.size());
    }
    specs.push_back({name, entry.dtype, shape});
  }
  runtime::SafetensorsWriter writer(to, specs);
  for (const auto& [name, rows] : bytes) {
    writer.write(name, rows);
  }
  writer.commit();
}

class TrainZoo : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<double> train(
      const std::string& name,
      int ranks,
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> words{
        "train",
        (folder_ / "train.json").string(),
        "model.config=" + (fixtures() / GetParam() / "config.json").string(),
        "data.train=" + (folder_ / "data.safetensors").string(),
        "output.folder=" + (folder_ / name).string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const auto result = tests::run_forked(ranks, words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return tests::losses_of(folder_ / name);
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_P(TrainZoo, HasTheSameLossesAloneAndDivided) {
  write_inputs(folder_ / "data.safetensors", GetParam());
  std::ofstream(folder_ / "train.json") << R"({"task": "examples",
      "model": {}, "data": {}, "output": {}, "optimizer": {"lr": 1e-3},
      "schedule": {"decay": "constant"},
      "training": {"clip_grad_norm": 0, "batch_size": 2, "accumulate": 2, "max_steps": 3,
        "epochs": 2, "seed": 3}})";
  const auto alone = train("alone", 1, {});
  ASSERT_EQ(alone.size(), 3U);
  const auto divided = train(
      "divided",
      4,
      {"parallel.shard=1", "parallel.tensor=2", "parallel.pipeline=2"});
  ASSERT_EQ(divided.size(), 3U);
  for (size_t i = 0; i < alone.size(); ++i) {
    // Float32 sums in other orders, over three steps of AdamW.
    EXPECT_NEAR(divided[i], alone[i], 1e-4 * std::max(1.0, alone[i]))
        << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    TrainZoo,
    ::testing::ValuesIn(trainable()),
    [](const auto& one) { return one.param; });

} // namespace tessera::train_zoo_test

// SPDX-License-Identifier: Apache-2.0
// `tessera logits` as a user runs it, on one rank and on two.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/safetensors.h"
#include "tools/run_forked.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace tessera::logits_test {

namespace {

using tests::run_forked;

/// Rows of the fixture that are compared: without padding on the left, where
/// results mean nothing.
constexpr int64_t kRows = 2;

std::filesystem::path fixture_folder(const char* name) {
  return std::filesystem::path(tests::source_dir()) /
         "tests/zoo/fixtures/models" / name;
}

std::filesystem::path model_folder() {
  return fixture_folder("llama");
}

template <typename Number>
std::vector<Number> numbers(const runtime::SafetensorsEntry& entry) {
  std::vector<Number> values(entry.data.size() / sizeof(Number));
  std::memcpy(values.data(), entry.data.data(), entry.data.size());
  return values;
}

nlohmann::json rows_of(const runtime::SafetensorsEntry& entry) {
  const auto values = numbers<int64_t>(entry);
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = values.begin() + row * entry.shape[1];
    rows.push_back(std::vector<int64_t>(begin, begin + entry.shape[1]));
  }
  return rows;
}

void write_input(
    const std::filesystem::path& path,
    const std::filesystem::path& model) {
  const auto file =
      runtime::SafetensorsFile::open(model / "expected.safetensors");
  std::ofstream(path) << nlohmann::json{
      {"input_ids", rows_of(file.at("in.input_ids"))},
      {"attention_mask", rows_of(file.at("in.attention_mask"))}};
}

/// As in the zoo's tests: float32 sums in another order.
void expect_near(
    const std::vector<float>& found,
    const std::vector<float>& expected,
    const std::string& name) {
  ASSERT_LE(found.size(), expected.size()) << name; // of its first rows
  float largest = 1;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-5 * largest)
        << name << " element " << i;
  }
}

void expect_reference(
    const std::filesystem::path& output,
    const std::filesystem::path& model) {
  const auto file = runtime::SafetensorsFile::open(output);
  const auto reference =
      runtime::SafetensorsFile::open(model / "expected.safetensors");
  for (const std::string name :
       {"logits", "hidden_states.0", "hidden_states.1", "hidden_states.2"}) {
    const runtime::SafetensorsEntry& entry = file.at(name);
    ASSERT_EQ(entry.shape.front(), kRows);
    const auto found = numbers<float>(entry);
    const auto expected = numbers<float>(reference.at("out." + name));
    expect_near(found, expected, name);
  }
  EXPECT_FALSE(file.contains("loss"));
}

} // namespace

TEST(Logits, WritesWhatTransformersComputes) {
  const TemporaryFolder folder;
  const auto input = folder / "ids.json";
  const auto check = [&](int ranks,
                         const std::vector<std::string>& more,
                         const char* name = "llama") {
    const std::filesystem::path model = fixture_folder(name);
    write_input(input, model);
    const auto output = folder / "out.safetensors";
    std::vector<std::string> arguments{
        "logits",
        "--model",
        model.string(),
        "--input",
        input.string(),
        "--output",
        output.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_forked(ranks, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_reference(output, model);
    std::filesystem::remove(output);
  };
  check(1, {});
  check(2, {});
  check(2, {"--tensor", "2", "--sequence"});
  check(2, {"--pipeline", "2"});
  check(2, {"--context", "2"});
  check(2, {"--expert", "2"}, "qwen3_moe");
  check(4, {"--tensor", "2", "--pipeline", "2"});
}

// As nested lists, and as they are in another file of tensors.
TEST(Logits, TakesPixels) {
  const TemporaryFolder folder;
  const auto model = fixture_folder("vit_classifier");
  const auto reference =
      runtime::SafetensorsFile::open(model / "expected.safetensors");
  const runtime::SafetensorsEntry& pixels = reference.at("in.pixel_values");
  const auto values = numbers<float>(pixels);
  size_t at = 0;
  const std::function<nlohmann::json(size_t)> nested = [&](size_t dim) {
    nlohmann::json list = nlohmann::json::array();
    for (int64_t i = 0; i < pixels.shape[dim]; ++i) {
      list.push_back(
          dim + 1 == pixels.shape.size() ? nlohmann::json(values[at++])
                                         : nested(dim + 1));
    }
    return list;
  };
  std::ofstream(folder / "pixels.json")
      << nlohmann::json{{"pixel_values", nested(0)}};
  runtime::SafetensorsWriter writer(
      folder / "pixels.safetensors",
      {{"pixel_values", pixels.dtype, pixels.shape}});
  writer.write("pixel_values", pixels.data);
  writer.commit();
  for (const char* input : {"pixels.json", "pixels.safetensors"}) {
    SCOPED_TRACE(input);
    const auto output = folder / "out.safetensors";
    const auto result = run_forked(
        1,
        {"logits",
         "--model",
         model.string(),
         "--input",
         (folder / input).string(),
         "--output",
         output.string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const auto file = runtime::SafetensorsFile::open(output);
    const auto found = numbers<float>(file.at("logits"));
    const auto expected = numbers<float>(reference.at("out.logits"));
    expect_near(found, expected, "logits");
  }
}

TEST(Logits, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto fails = [&](const std::string& input, const char* expected) {
    std::ofstream(folder / "ids.json") << input;
    const auto result = run_forked(
        1,
        {"logits",
         "--model",
         model_folder().string(),
         "--input",
         (folder / "ids.json").string(),
         "--output",
         (folder / "out.safetensors").string()});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
  };
  fails("[1]", "it must be an object");
  fails(R"({"input_ids": [[1, 2], [3]]})", "'input_ids'[1] is [3]");
  fails(R"({"input_ids": [[1, "a"]]})", "must be a number");
  fails(R"({"input_ids": [[1, 99]]})", "input_ids holds 99");
  fails(R"({"input_ids": [[1]], "pixels": [1]})", "does not take 'pixels'");
  fails(R"({"input_ids": [[1.5]]})", "int64 or int32");
}

} // namespace tessera::logits_test

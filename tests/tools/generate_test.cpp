// SPDX-License-Identifier: Apache-2.0
// `tessera generate` as a user runs it, on one rank and on several.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::generate_test {

namespace {

using tests::read_json;

std::filesystem::path fixtures() {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures";
}

/// A case of LLaMA of the fixture.
nlohmann::json reference(const std::string& way = "penalty") {
  for (const auto& one : read_json(fixtures() / "generation.json")) {
    if (one.at("model") == "llama" && one.at("way") == way) {
      return one;
    }
  }
  return {};
}

/// The texts of a batch without their padding.
nlohmann::json texts_of(const nlohmann::json& batch) {
  nlohmann::json texts;
  for (size_t row = 0; row < batch.at("input_ids").size(); ++row) {
    nlohmann::json text;
    for (size_t i = 0; i < batch["input_ids"][row].size(); ++i) {
      if (batch["attention_mask"][row][i] == 1) {
        text.push_back(batch["input_ids"][row][i]);
      }
    }
    texts.push_back(text);
  }
  return texts;
}

std::vector<std::string> command(
    const std::filesystem::path& input,
    const std::filesystem::path& output,
    const std::filesystem::path& model = fixtures() / "models/llama") {
  return {
      "generate",
      "--model",
      model.string(),
      "--input",
      input.string(),
      "--output",
      output.string()};
}

} // namespace

TEST(Generate, GoesOnAsTransformersDoes) {
  const TemporaryFolder folder;
  const nlohmann::json expected = reference();
  std::ofstream(folder / "texts.json")
      << nlohmann::json{{"input_ids", texts_of(expected)}};
  const auto check = [&](int ranks, const std::vector<std::string>& more) {
    auto arguments = command(folder / "texts.json", folder / "out.json");
    arguments.insert(
        arguments.end(),
        {"--max-new-tokens", "9", "--repetition-penalty", "1.7"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = tests::run_forked(ranks, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    // The fixture ends and pads with other tokens than the folder says.
    const nlohmann::json found = read_json(folder / "out.json").at("sequences");
    ASSERT_EQ(found.size(), 3U);
    for (size_t row = 0; row < 3; ++row) {
      const int end = expected["options"]["eos_token_id"];
      const nlohmann::json& sequence = expected["sequences"][row];
      const auto& mask = expected["attention_mask"][row];
      const auto padding =
          static_cast<size_t>(std::count(mask.begin(), mask.end(), 0));
      for (size_t i = padding; i < sequence.size(); ++i) {
        EXPECT_EQ(found[row][i - padding], sequence[i]);
        if (i >= mask.size() && (sequence[i] == end || sequence[i] == 2)) {
          break;
        }
      }
    }
    std::filesystem::remove(folder / "out.json");
  };
  check(1, {});
  check(2, {"--pipeline", "2"});
  check(4, {"--tensor", "2", "--pipeline", "2"});
}

// A mask leaves out what a text does not have.
TEST(Generate, GoesOnWithoutPadding) {
  const TemporaryFolder folder;
  const auto sequences = [&](const char* input) {
    std::ofstream(folder / "texts.json") << input;
    auto arguments = command(folder / "texts.json", folder / "out.json");
    const auto result = tests::run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return read_json(folder / "out.json").at("sequences");
  };
  EXPECT_EQ(
      sequences(R"({"input_ids": [[0, 0, 5, 7], [3, 4, 5, 6]],
                    "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]})"),
      sequences(R"({"input_ids": [[5, 7], [3, 4, 5, 6]]})"));
}

// What the folder says, and what is said in place of it.
TEST(Generate, FollowsBeams) {
  const TemporaryFolder folder;
  for (const std::string way : {"beams", "patient_beams"}) {
    nlohmann::json expected = reference(way);
    nlohmann::json options = expected.at("options");
    if (way == "patient_beams") {
      options["early_stopping"] = true;
      options["num_beams"] = 7;
    }
    const auto model = folder / way;
    std::filesystem::copy(fixtures() / "models/llama", model);
    std::ofstream(model / "generation_config.json") << options;
    std::ofstream(folder / "texts.json")
        << nlohmann::json{{"input_ids", texts_of(expected)}};
    auto arguments = command(folder / "texts.json", folder / "out.json", model);
    if (way == "patient_beams") {
      arguments.insert(
          arguments.end(), {"--num-beams", "2", "--early-stopping", "never"});
    }
    const auto result = tests::run_forked(1, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json found = read_json(folder / "out.json").at("sequences");
    const size_t each = expected["options"].value("num_return_sequences", 1);
    ASSERT_EQ(found.size(), 3 * each);
    for (size_t row = 0; row < found.size(); ++row) {
      nlohmann::json& sequence = expected["sequences"][row];
      const auto& mask = expected["attention_mask"][row / each];
      sequence.erase(
          sequence.begin(),
          sequence.begin() + std::count(mask.begin(), mask.end(), 0));
      EXPECT_EQ(found[row], sequence) << way;
    }
  }
}

TEST(Generate, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto fails = [&](const std::string& input,
                         const std::vector<std::string>& more,
                         const char* expected) {
    std::ofstream(folder / "texts.json") << input;
    auto arguments = command(folder / "texts.json", folder / "out.json");
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = tests::run_forked(1, arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    EXPECT_FALSE(std::filesystem::exists(folder / "out.json"));
  };
  fails("[1]", {}, "not a JSON object");
  fails("{}", {}, "'input_ids' is missing");
  fails(
      R"({"input_ids": [[1]], "labels": [[1]]})",
      {},
      "unexpected key 'labels'");
  fails(
      R"({"input_ids": [[1, 2]], "attention_mask": [[1]]})",
      {},
      "a 0 or 1 for each token");
  fails(R"({"input_ids": [[1], []]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [["a"]]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [[1.5]]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [[1, 999]]})", {}, "input_ids holds 999");
  const std::string good = R"({"input_ids": [[1]]})";
  fails(good, {"--sample", "--top-p", "2"}, "top_p is 2");
  for (const char* const option :
       {"--temperature", "--top-k", "--top-p", "--min-p", "--seed"}) {
    fails(good, {option, "1"}, "add --sample");
  }
}

} // namespace tessera::generate_test

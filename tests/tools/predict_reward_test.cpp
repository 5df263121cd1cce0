// SPDX-License-Identifier: Apache-2.0
// `tessera predict` as a user runs it, on a reward model.
#include "tasks/preference_run.h"
#include "tools/run_forked.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::predict_reward_test {

using nlohmann::json;
using tests::run_forked;

class PredictReward : public tasks::preference_test::PreferenceRun {
 protected:
  PredictReward() : PreferenceRun("reward") {}

  /// The output for these arguments, without the log.
  std::vector<std::string> lines(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"predict", run_.string()});
    const auto result = run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::istringstream text(result.output);
    std::vector<std::string> found;
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with("tessera: ")) {
        found.push_back(line);
      }
    }
    return found;
  }
};

TEST_F(PredictReward, OfArgumentsAndRows) {
  tests::on_ranks(1, [&] {
    write_model();
    run_training(config({"model.lora=null", "training.epochs=10"}));
  });
  const auto given =
      lines({"is mail good?", "yes it is", "is mail good?", "no way"});
  ASSERT_EQ(given.size(), 2U);
  EXPECT_TRUE(given[0].ends_with("\tis mail good? | yes it is")) << given[0];
  EXPECT_GT(std::stod(given[0]), std::stod(given[1]) + 0.1);
  const std::string rows = file(
      "new.jsonl",
      {{{"question", "is mail good?"}, {"answer", "yes it is"}},
       {{"answer", "no way"}}});
  const auto read = lines(
      {"--input",
       rows,
       "--text-key",
       "question",
       "--text-key",
       "answer",
       "--json"});
  ASSERT_EQ(read.size(), 2U);
  const json first = json::parse(read[0]);
  EXPECT_NEAR(first["value"].get<double>(), std::stod(given[0]), 1e-4);
  EXPECT_EQ(first["answer"], "yes it is");
  EXPECT_TRUE(json::parse(read[1])["value"].is_number());
  const auto refused =
      run_forked(1, {"predict", run_.string(), "--text-key", "a", "b"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("--text-key is given once"), std::string::npos)
      << refused.output;
}

TEST_F(PredictReward, OfConversations) {
  tests::on_ranks(1, [&] {
    write_model(
        "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}");
    run_training(config({"model.lora=null", "training.epochs=1"}));
  });
  const auto said = [](const char* role, const char* content) {
    return json{{"role", role}, {"content", content}};
  };
  const json both{
      said("user", "is mail good?"), said("assistant", "yes it is")};
  const auto given = lines(
      {"--input",
       file("conversations.jsonl", {{{"messages", both}}}),
       "--json"});
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(json::parse(given[0])["messages"], both);
  EXPECT_TRUE(json::parse(given[0])["value"].is_number());
}

} // namespace tessera::predict_reward_test

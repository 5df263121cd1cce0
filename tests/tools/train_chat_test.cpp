// SPDX-License-Identifier: Apache-2.0
// A LoRA adapter trained on conversations, from the recipe, and talked to by
// `tessera generate`: on its model, and merged into it.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/models/pretrained.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::train_chat_test {

namespace {

namespace fs = std::filesystem;
using tests::read_json;
using tests::run_forked;

class TrainChat : public ::testing::Test {
 protected:
  TrainChat() {
    // In a process of its own: threads of LibTorch do not survive a fork.
    const auto made = tests::run_as_ranks(1, [this] {
      write_model();
      return 0;
    });
    EXPECT_EQ(made.exit_code, 0) << made.output;
    std::ofstream(folder_ / "chats.jsonl")
        << R"({"messages": [{"role": "user", "content": "is it so"}, {"role": "assistant", "content": "no way"}]})"
        << "\n"
        << R"({"messages": [{"role": "user", "content": "the world"}, {"role": "assistant", "content": "is here"}]})"
        << "\n";
    std::ofstream(folder_ / "asked.jsonl")
        << R"({"messages": [{"role": "user", "content": "is it so"}]})"
        << "\n"
        << R"({"messages": [{"role": "user", "content": "the world"}]})"
        << "\n";
  }

  /// A LLaMA of 422 tokens with a template that does not mark answers.
  void write_model() const {
    const fs::path fixtures =
        fs::path(tests::source_dir()) / "tests/zoo/fixtures";
    auto config = read_json(fixtures / "models/llama/config.json");
    config["vocab_size"] = 422;
    config["max_position_embeddings"] = 96;
    config["eos_token_id"] = 0;
    torch::manual_seed(3);
    zoo::save_pretrained(*zoo::from_config(config), model_);
    fs::copy(fixtures / "tokenizers/qwen2.json", model_ / "tokenizer.json");
    std::ofstream(model_ / "tokenizer_config.json")
        << R"({"eos_token": "<|end|>"})";
    std::ofstream(model_ / "chat_template.jinja")
        << "{% for m in messages %}{{ m.role }}:\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";
  }

  std::string train(
      const std::string& name,
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{
        "train",
        "configs/finetune_chat_lora.json",
        "model.folder=" + model_.string(),
        "model.max_length=64",
        "data.train=" + (folder_ / "chats.jsonl").string(),
        "data.heldout=" + (folder_ / "chats.jsonl").string(),
        "data.max_new_tokens=8",
        "optimizer.lr=0.03",
        "schedule.decay=constant",
        "training.epochs=30",
        "output.folder=" + (folder_ / name).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  }

  std::vector<std::string> answers(const fs::path& model, int ranks = 1) const {
    const fs::path out = folder_ / "out.jsonl";
    fs::remove(out);
    const auto result = run_forked(
        ranks,
        {"generate",
         "--model",
         model.string(),
         "--chat",
         "--max-new-tokens",
         "8",
         "--input",
         (folder_ / "asked.jsonl").string(),
         "--output",
         out.string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<std::string> texts;
    std::ifstream file(out);
    for (std::string line; std::getline(file, line);) {
      texts.push_back(nlohmann::json::parse(line).at("text"));
    }
    return texts;
  }

  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
};

} // namespace

TEST_F(TrainChat, AnAdapterAnswersOnItsModelAndMerged) {
  const std::string output = train("run");
  EXPECT_NE(output.find("LoRA of rank 16"), std::string::npos) << output;
  EXPECT_NE(output.find("ROUGE-L"), std::string::npos) << output;
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
  train("merged", {"model.lora.merge=true"});
  EXPECT_TRUE(fs::exists(folder_ / "merged/model/chat_template.jinja"));
  const auto base = answers(model_);
  const auto adapted = answers(folder_ / "run");
  ASSERT_EQ(adapted.size(), 2U);
  EXPECT_NE(adapted, base) << adapted[0];
  EXPECT_EQ(adapted, answers(folder_ / "merged"));
  EXPECT_EQ(adapted, answers(folder_ / "run/adapter"));
  EXPECT_EQ(adapted, answers(folder_ / "run", 2));
  const auto score = run_forked(1, {"eval", (folder_ / "run").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  EXPECT_NE(score.output.find("of 2 generated texts"), std::string::npos)
      << score.output;
}

TEST_F(TrainChat, TokensShowsWhatIsLearned) {
  const auto shown = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"tokens", model_.string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_forked(1, words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  const fs::path chats = folder_ / "chats.jsonl";
  const std::string both = shown({"--chat", chats.string()});
  for (const char* part :
       {"chats.jsonl:1: ",
        " learned\n",
        R"(  given   "user:\nis it so<|end|>\nassistant:\n")",
        R"(  learned "no way<|end|>)",
        R"(  learned "is here<|end|>)"}) {
    EXPECT_NE(both.find(part), std::string::npos) << part << "\n" << both;
  }
  const std::string first = shown({"--chat", chats.string(), "--rows", "1"});
  EXPECT_EQ(first.find("is here"), std::string::npos) << first;
  const auto row = nlohmann::json::parse(
      shown({"--chat", chats.string(), "--rows", "1", "--json"}));
  ASSERT_EQ(row.at("input_ids").size(), row.at("learned").size());
  EXPECT_EQ(row.at("learned").front(), false);
  EXPECT_EQ(row.at("pieces").size(), row.at("learned").size());
  const fs::path shared = folder_ / "shared.jsonl";
  std::ofstream(shared)
      << R"({"conversations": [{"from": "human", "value": "is it so"}, {"from": "gpt", "value": "no way"}]})"
      << "\n";
  const std::string same =
      shown({"--chat", shared.string(), "--preset", "sharegpt"});
  EXPECT_EQ(same.substr(same.find(": ")), first.substr(first.find(": ")))
      << same;
}

TEST_F(TrainChat, AnAdapterWithoutItsModelIsRefused) {
  train("run", {"training.epochs=1", "data.heldout=", "data.metric=[]"});
  fs::rename(model_, folder_ / "elsewhere");
  for (const char* name : {"run", "run/adapter"}) {
    const auto result = run_forked(
        1,
        {"generate",
         "--model",
         (folder_ / name).string(),
         "--prompt",
         "the world"});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(
        result.output.find("is an adapter on the model"), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find(model_.string()), std::string::npos);
  }
}

} // namespace tessera::train_chat_test

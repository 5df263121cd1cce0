// SPDX-License-Identifier: Apache-2.0
// The example as a user runs it, with a tiny BERT of random weights.
#include "support/launched_job.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/small_bert.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace tessera::finetune_bert_large_test {

namespace {

namespace fs = std::filesystem;
using tests::LaunchedJob;

constexpr int kLayers = 3;

void write_model(const fs::path& folder) {
  fs::create_directories(folder);
  std::ofstream vocabulary(folder / "vocab.txt");
  for (const char* token :
       {"[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "game",
        "of",
        "cards",
        "mail",
        "server"}) {
    vocabulary << token << '\n';
  }
  vocabulary.close();
  torch::manual_seed(1);
  const auto model = tests::small_bert(
      {{"vocab_size", 11},
       {"hidden_size", 32},
       {"num_hidden_layers", kLayers},
       {"num_attention_heads", 2},
       {"intermediate_size", 64},
       {"max_position_embeddings", 64},
       {"pad_token_id", 0}});
  zoo::save_pretrained(*model, folder, folder);
}

void expect_in(const std::string& output, const std::string& expected) {
  EXPECT_NE(output.find(expected), std::string::npos)
      << expected << " is not in:\n"
      << output;
}

class FinetuneBertLarge : public ::testing::Test {
 protected:
  void SetUp() override {
    write_model(folder_.path() / "bert");
    std::ofstream data(folder_.path() / "data.jsonl");
    for (int i = 0; i < 12; ++i) {
      data << "{\"text\": \"a game of cards\", \"label\": \"games\"}\n"
           << "{\"text\": \"a mail server\", \"label\": \"net\"}\n";
    }
  }

  LaunchedJob::Result run(const std::vector<std::string>& overrides) const {
    const fs::path data = folder_.path() / "data.jsonl";
    std::vector<std::string> arguments{
        tests::program("finetune_bert_large"),
        "device=cpu",
        "model.folder=" + (folder_.path() / "bert").string(),
        "model.max_length=16",
        "data.train=" + data.string(),
        "data.heldout=" + data.string(),
        "training.batch_size=2",
        "training.accumulate=2",
        "training.max_steps=3",
        "output.folder=" + out().string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    LaunchedJob job([&arguments] {
      fs::current_path(tests::source_dir());
      // oneDNN's float16 products take scratch memory where the processor has
      // instructions for them, which no plan of a GPU's memory has.
      ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1);
      std::vector<char*> argv;
      for (std::string& argument : arguments) {
        argv.push_back(argument.data());
      }
      argv.push_back(nullptr);
      ::execv(argv.front(), argv.data());
      return 127;
    });
    return job.wait();
  }

  /// The least budget that the example says it can train with.
  int64_t least_budget() const {
    const auto refused = run({"memory.device_bytes=1000"});
    EXPECT_EQ(refused.exit_code, 1);
    expect_in(refused.output, "memory budget is");
    expect_in(refused.output, "smaller micro-batches");
    std::smatch needed;
    const bool found = std::regex_search(
        refused.output,
        needed,
        std::regex("this rank needs [0-9.]+ MiB .([0-9]+) bytes"));
    EXPECT_TRUE(found) << refused.output;
    return found ? std::stoll(needed[1]) : 0;
  }

  /// The most memory that the log of the run tells of.
  int64_t measured_peak() const {
    const std::string log = runtime::read_text_file(out() / "metrics.jsonl");
    int64_t peak = 0;
    const std::regex field("\"memory_bytes\":([0-9]+)");
    for (std::sregex_iterator it(log.begin(), log.end(), field), end; it != end;
         ++it) {
      peak = std::max<int64_t>(peak, std::stoll((*it)[1]));
    }
    return peak;
  }

  fs::path out() const {
    return folder_.path() / "run";
  }

  TemporaryFolder folder_;
};

} // namespace

TEST_F(FinetuneBertLarge, TrainsWithinItsBudgetAndExports) {
  const auto result = run({});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_in(result.output, "memory of rank 0 of 1");
  expect_in(result.output, "0 of 3 layers recomputed");
  expect_in(result.output, "predicted peak: ");
  expect_in(result.output, "the budget is 11.0 GiB");
  expect_in(result.output, "3 steps, ");
  for (const char* file :
       {"metrics.jsonl", "loss.svg", "report.html", "model/config.json"}) {
    EXPECT_TRUE(fs::exists(out() / file)) << file;
  }
  // Three steps, one interval of the log.
  const std::string line = runtime::read_text_file(out() / "metrics.jsonl");
  expect_in(line, "\"step\":3,");
  for (const char* key :
       {"data_s",
        "forward_s",
        "backward_s",
        "optimizer_s",
        "exposed_transfer_s"}) {
    expect_in(line, std::string("\"") + key + "\":");
  }

  // With all layers kept, and with as many recomputed as the budget requires.
  const int64_t kept = measured_peak();
  runtime::remove_tree(out());
  const int64_t budget = least_budget();
  const auto tight = run({"memory.device_bytes=" + std::to_string(budget)});
  ASSERT_EQ(tight.exit_code, 0) << tight.output;
  const int64_t peak = measured_peak();
  EXPECT_LE(peak, budget);
  EXPECT_GT(peak, budget / 2); // else the budget is not what held it down
  EXPECT_LT(peak, kept);
}

TEST_F(
    FinetuneBertLarge,
    RefusesABudgetThatIsTooSmallAndComputesAgainWhatMust) {
  const auto least = run(
      {"memory.device_bytes=" + std::to_string(least_budget()),
       "training.max_steps=1"});
  EXPECT_EQ(least.exit_code, 0) << least.output;
  expect_in(least.output, "2 of 3 layers recomputed");
}

TEST_F(FinetuneBertLarge, SaysHowToGetAModel) {
  const auto result = run({"model.folder=/nowhere/bert"});
  EXPECT_EQ(result.exit_code, 1);
  expect_in(result.output, "/nowhere/bert");
  expect_in(result.output, "hf://google-bert/bert-large-uncased");
}

} // namespace tessera::finetune_bert_large_test

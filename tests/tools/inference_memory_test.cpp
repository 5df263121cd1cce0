// SPDX-License-Identifier: Apache-2.0
// Programs that only compute need memory for weights, not for gradients and
// optimizer state, and less of it on each of several ranks than on one.
#include "support/paths.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/models/pretrained.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::inference_memory_test {

namespace {

using tests::run_tessera;

constexpr int64_t kWeightBytes = 4 * 38'000'000;

/// A LLaMA of 38 million parameters, in float32.
void write_model(const std::filesystem::path& folder) {
  tests::run_ranks(1, [&](World&) { // its memory is not this process's
    const auto model = zoo::from_config(
        {{"model_type", "llama"},
         {"vocab_size", 500},
         {"hidden_size", 512},
         {"intermediate_size", 1408},
         {"num_hidden_layers", 12},
         {"num_attention_heads", 8}});
    int64_t bytes = 0;
    for (const at::Tensor& parameter : model->parameters()) {
      bytes += static_cast<int64_t>(parameter.nbytes());
    }
    EXPECT_NEAR(static_cast<double>(bytes), kWeightBytes, 0.05 * kWeightBytes);
    zoo::save_pretrained(*model, folder);
  });
}

/// Peak resident memory of the largest process that a command starts.
int64_t peak_bytes(int ranks, const std::vector<std::string>& words) {
  const TemporaryFolder folder;
  const auto file = folder / "peak";
  tests::LaunchedJob job([&] {
    const auto result = run_tessera(ranks, words);
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    std::ofstream(file) << usage.ru_maxrss;
    std::fputs(result.output.c_str(), stderr);
    std::fflush(stderr);
    return result.exit_code;
  });
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  int64_t kibibytes = 0;
  std::ifstream(file) >> kibibytes;
  return 1024 * kibibytes;
}

} // namespace

TEST(InferenceMemory, IsLessOnSeveralRanksThanOnOne) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2, 3, 4]]})";
  for (const std::string program : {"logits", "generate"}) {
    std::vector<std::string> words{
        program,
        "--model",
        (folder / "model").string(),
        "--input",
        (folder / "ids.json").string(),
        "--output",
        (folder / "out.safetensors").string()};
    if (program == "generate") {
      words.insert(words.end(), {"--max-new-tokens", "2"});
    }
    const int64_t alone = peak_bytes(1, words);
    for (const std::vector<std::string>& layout :
         {std::vector<std::string>{}, {"--tensor", "2"}, {"--pipeline", "2"}}) {
      std::vector<std::string> divided = words;
      divided.insert(divided.end(), layout.begin(), layout.end());
      EXPECT_LT(peak_bytes(2, divided), alone)
          << program << (layout.empty() ? "" : layout.front());
    }
  }
}

// With a budget below the weights' size, most of them are in files until their
// layers run: the same tokens, within the budget and what one layer needs.
TEST(InferenceMemory, IsLessWithABudget) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2, 3, 4]]})";
  const std::string tiny =
      tests::source_dir() + std::string("/tests/zoo/fixtures/models/llama");
  const std::string model = (folder / "model").string();
  const auto peak = [&](const std::string& of,
                        const std::vector<std::string>& more) {
    std::vector<std::string> words{
        "generate",
        "--model",
        of,
        "--input",
        (folder / "ids.json").string(),
        "--output",
        (folder / "out.json").string(),
        "--max-new-tokens",
        "4"};
    words.insert(words.end(), more.begin(), more.end());
    const int64_t bytes = peak_bytes(1, words);
    return std::pair(bytes, tests::read_json(folder / "out.json"));
  };
  const auto alone = peak(model, {});
  constexpr int64_t kBudget = kWeightBytes / 3;
  std::filesystem::create_directory(folder / "disk");
  const auto budgeted = peak(
      model,
      {"--device-memory",
       std::to_string(kBudget),
       "--host-memory",
       std::to_string(kBudget / 2),
       "--nvme",
       (folder / "disk").string()});
  EXPECT_EQ(budgeted.second, alone.second);
  // Beyond what a program has without weights to speak of, and the pages of the
  // file, which count until the kernel drops them.
  const int64_t base = peak(tiny, {}).first + kWeightBytes;
  EXPECT_GT(alone.first - base, 9 * kWeightBytes / 10);
  EXPECT_LT(budgeted.first - base, 3 * kBudget / 2);
}

} // namespace tessera::inference_memory_test

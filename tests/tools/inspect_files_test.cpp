// SPDX-License-Identifier: Apache-2.0
// `tessera inspect`, of weights and of checkpoints.
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/io/atomic_file.h"

#include "program_main.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::inspect_files_test {

namespace {

namespace fs = std::filesystem;

struct Inspected {
  int code = 0;
  std::string text;
  nlohmann::json json() const {
    return nlohmann::json::parse(text);
  }
};

Inspected inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  Inspected result;
  testing::internal::CaptureStdout();
  try {
    result.code =
        tools::run_inspect(static_cast<int>(argv.size()), argv.data());
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  result.text = testing::internal::GetCapturedStdout();
  return result;
}

fs::path fixtures() {
  return fs::path(tests::source_dir()) / "tests/sharding/fixtures";
}

/// A checkpoint of two ranks after one step, of a matrix of 5 x 3 and a bias.
fs::path save_checkpoint(const fs::path& folder) {
  tests::run_ranks(2, [&](World&) {
    torch::manual_seed(3);
    torch::nn::Linear net(3, 5);
    EngineOptions options;
    auto engine = wrap(net, options);
    engine.backward(net->forward(torch::randn({2, 3})).square().mean());
    engine.step();
    engine.save(folder);
  });
  return engine::list_checkpoints(folder).back();
}

void flip_byte(const fs::path& file, int64_t from_end) {
  std::string text = runtime::read_text_file(file);
  text[text.size() - static_cast<size_t>(from_end)] ^= 1;
  std::ofstream(file, std::ios::binary) << text;
}

} // namespace

TEST(Inspect, ListsWeights) {
  for (const char* file : {"torch/views.pt", "torch/views.safetensors"}) {
    const auto listed = inspect({(fixtures() / file).string(), "--json"});
    EXPECT_EQ(listed.code, 0);
    const auto json = listed.json();
    EXPECT_EQ(json.at("kind"), "weights");
    bool is_found = false;
    for (const auto& tensor : json.at("tensors")) {
      if (tensor.at("name") == "bfloat16") {
        is_found = true;
        EXPECT_EQ(tensor.at("dtype"), "BF16");
        EXPECT_EQ(tensor.at("shape"), nlohmann::json({3, 3}));
        EXPECT_EQ(tensor.at("bytes"), 18);
      }
    }
    EXPECT_TRUE(is_found);
  }
  const auto text = inspect({(fixtures() / "engines/zero3").string()});
  EXPECT_NE(text.text.find("embed.weight  7 x 5  F32"), std::string::npos)
      << text.text;
}

TEST(Inspect, VerifiesFilesOfTorchSave) {
  const TemporaryFolder folder;
  const fs::path path = folder / "views.pt";
  fs::copy_file(fixtures() / "torch/views.pt", path);
  EXPECT_EQ(inspect({path.string(), "--verify"}).code, 0);
  std::string text = runtime::read_text_file(path);
  const auto listed = inspect({path.string(), "--json", "--verify"});
  ASSERT_EQ(listed.code, 0);
  // A byte of an entry that readers of tensors do not need.
  const size_t at = text.find("3\n", text.find("views/version"));
  ASSERT_NE(at, std::string::npos);
  text[at] ^= 1;
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(inspect({path.string()}).code, 0); // is read without checksums
  const auto damaged = inspect({path.string(), "--verify"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE(damaged.text.find("does not have its checksum"), std::string::npos)
      << damaged.text;
  expect_error(
      [&] {
        inspect(
            {(fixtures() / "torch/views.safetensors").string(), "--verify"});
      },
      {"--verify", "no checksums"});
}

TEST(Inspect, ListsCheckpoints) {
  const TemporaryFolder folder;
  const fs::path checkpoint = save_checkpoint(folder / "checkpoints");
  // The folder of the run, that of its checkpoints, and the checkpoint.
  for (const fs::path& path :
       {folder.path(), folder / "checkpoints", checkpoint}) {
    const auto listed = inspect({path.string(), "--json", "--verify"});
    EXPECT_EQ(listed.code, 0) << listed.text;
    const auto json = listed.json();
    EXPECT_EQ(json.at("kind"), "checkpoint");
    EXPECT_EQ(json.at("step"), 1);
    EXPECT_EQ(json.at("ranks"), 2);
    EXPECT_EQ(json.at("parameters_numel"), 20);
    ASSERT_EQ(json.at("tensors").size(), 2u);
    for (const auto& tensor : json.at("tensors")) {
      const bool is_bias = tensor.at("name") == "bias";
      EXPECT_EQ(
          tensor.at("shape"),
          is_bias ? nlohmann::json({5}) : nlohmann::json({5, 3}));
      for (const char* state : {"master", "exp_avg", "exp_avg_sq"}) {
        EXPECT_EQ(tensor.at("states").at(state).at("bytes"), is_bias ? 20 : 60)
            << state;
        EXPECT_EQ(tensor.at("states").at(state).at("dtype"), "F32");
      }
    }
  }
}

TEST(Inspect, FindsWhatIsMissingOrDamaged) {
  const TemporaryFolder folder;
  const fs::path checkpoint = save_checkpoint(folder.path());
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(checkpoint)) {
    if (item.path().extension() == ".safetensors") {
      files.push_back(item.path());
    }
  }
  ASSERT_EQ(files.size(), 2u);
  std::sort(files.begin(), files.end());
  flip_byte(files[0], 1);
  EXPECT_EQ(inspect({checkpoint.string()}).code, 0);
  auto listed = inspect({checkpoint.string(), "--verify"});
  EXPECT_EQ(listed.code, 1);
  EXPECT_NE(listed.text.find("does not have the checksum"), std::string::npos)
      << listed.text;
  flip_byte(files[0], 1);
  EXPECT_EQ(inspect({checkpoint.string(), "--verify"}).code, 0);
  fs::remove(files[1]);
  listed = inspect({checkpoint.string()});
  EXPECT_EQ(listed.code, 1);
  EXPECT_NE(
      listed.text.find(files[1].filename().string() + " is missing"),
      std::string::npos)
      << listed.text;
  EXPECT_NE(listed.text.find(" elements"), std::string::npos) << listed.text;
  expect_error(
      [&] { inspect({(folder / "none").string()}); }, {"does not exist"});
}

} // namespace tessera::inspect_files_test

// SPDX-License-Identifier: Apache-2.0
// Models and data by their names on the Hub, in configurations and in C++.
#include "support/expect_error.h"
#include "support/fake_hub.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_training.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::tasks::hub_names_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::map<std::string, std::string> model_files() {
  std::map<std::string, std::string> files;
  for (const char* name : {"config.json", "model.safetensors"}) {
    files[name] = runtime::read_text_file(fixture("models") / "gpt2" / name);
  }
  return files;
}

std::string tokens() {
  std::string bytes;
  for (int i = 0; i < 1200; ++i) {
    bytes += static_cast<char>((i * 7 + i / 50) % 60); // uint16
    bytes += '\0';
  }
  return bytes;
}

class HubNames : public ::testing::Test {
 protected:
  HubNames() {
    ::setenv("HF_ENDPOINT", hub_.server().url().c_str(), 1);
    ::setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
    ::unsetenv("HF_HUB_OFFLINE");
  }
  ~HubNames() override {
    ::unsetenv("HF_ENDPOINT");
    ::unsetenv("HF_HUB_CACHE");
  }

  fs::path write_config() const {
    const json values = {
        {"task", "language_model"},
        {"model", {{"folder", "hf://org/small"}, {"max_length", 16}}},
        {"data", {{"train", (folder_ / "tokens.bin").string()}}},
        {"optimizer", {{"lr", 0.02}}},
        {"training",
         {{"clip_grad_norm", 0}, {"batch_size", 2}, {"max_steps", 2}}},
        {"output", {{"folder", (folder_ / "run").string()}}}};
    runtime::write_file_atomically(folder_ / "tokens.bin", tokens());
    runtime::write_file_atomically(folder_ / "train.json", values.dump());
    return folder_ / "train.json";
  }
  fs::path snapshot() const {
    return folder_ / "cache" / "models--org--small" / "snapshots" / hub_.commit;
  }

  TemporaryFolder folder_;
  FakeHub hub_{"models", "org/small", model_files()};
};

} // namespace

TEST_F(HubNames, OfModelsAreFetchedOnceAndKeptWithTheirCommit) {
  const fs::path file = write_config();
  tests::on_ranks(2, [&] {
    const TrainingConfig config = read_training_config(file);
    EXPECT_EQ(config.model_folder, snapshot());
    EXPECT_EQ(
        config.resolved["model"]["folder"], "hf://org/small@" + hub_.commit);
    run_training(config);
  });
  EXPECT_EQ(hub_.server().count("model.safetensors"), 1);
  // The run starts from that commit wherever the branch goes.
  hub_.commit = std::string(40, 'c');
  const TrainingConfig again =
      read_training_config(folder_ / "run" / "config.json");
  EXPECT_EQ(again.model_folder.filename(), std::string(40, 'a'));
}

TEST_F(HubNames, PlansAndChecksFetchNoWeights) {
  const TrainingConfig config = read_training_config(
      write_config(), {}, nullptr, HubFiles::kDescriptions);
  EXPECT_TRUE(fs::exists(config.model_folder / "config.json"));
  EXPECT_FALSE(fs::exists(config.model_folder / "model.safetensors"));
  const auto asked = hub_.server().requests().size();
  EXPECT_NO_THROW(
      read_training_config(write_config(), {}, nullptr, HubFiles::kNone));
  expect_error(
      [&] {
        read_training_config(
            write_config(),
            {"model.folder=hf://org/small@../x"},
            nullptr,
            HubFiles::kNone);
      },
      {"hf://org/small@../x", "revision"});
  EXPECT_EQ(hub_.server().requests().size(), asked);
}

TEST_F(HubNames, OfBasesAreThoseOfAdapters) {
  const TrainingConfig config = read_training_config(
      write_config(),
      {"model.lora.r=2", "model.lora.target_modules=all-linear"});
  ASSERT_TRUE(config.lora.has_value());
  EXPECT_EQ(config.lora->adapter.base_model, "org/small");
  const fs::path adapter = folder_ / "adapter";
  fs::create_directory(adapter);
  runtime::write_file_atomically(
      adapter / "adapter_config.json",
      json{{"base_model_name_or_path", "org/small"}}.dump());
  EXPECT_EQ(adapted_folder_of(adapter).model, snapshot());
}

TEST_F(HubNames, OfDataAreFetched) {
  FakeHub data("datasets", "org/tokens", {{"data/train.bin", tokens()}});
  ::setenv("HF_ENDPOINT", data.server().url().c_str(), 1);
  const auto config = read_training_config(
      write_config(),
      {"model.folder=" + (fixture("models") / "gpt2").string(),
       "data.train=hf://datasets/org/tokens/data/train.bin"});
  const auto files = config.train_files();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(runtime::read_text_file(files[0]), tokens());
  EXPECT_EQ(
      config.resolved["data"]["train"],
      "hf://datasets/org/tokens/data/train.bin");
}

TEST_F(HubNames, LoadModelsInCpp) {
  tests::on_ranks(1, [&] {
    const auto model = zoo::from_pretrained("org/small");
    EXPECT_EQ(model->architecture(), "GPT2LMHeadModel");
    expect_error(
        [] { zoo::from_pretrained("org/other"); },
        {"'org/other' is not a folder here", "hf://org/other"});
  });
}

} // namespace tessera::tasks::hub_names_test

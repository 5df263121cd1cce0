// SPDX-License-Identifier: Apache-2.0
// What a run trains, by names, and how fast: model.train, model.freeze and
// model.lora.lora_plus_ratio.

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/config.h"
#include "tessera/tasks/run_training.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/adapters/lora.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::tasks::trained_parameters_test {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, torch::Tensor>;

Tensors tensors_in(const std::filesystem::path& file) {
  const auto opened = runtime::SafetensorsFile::open(file);
  Tensors tensors;
  for (const auto& entry : opened.entries()) {
    tensors[entry.name] = fixture_tensor(opened, entry.name);
  }
  return tensors;
}

class TrainedParameters : public ::testing::Test {
 protected:
  TrainedParameters() {
    std::ofstream file(folder_ / "tokens.bin", std::ios::binary);
    for (uint16_t i = 0; i < 200; ++i) {
      const auto token = static_cast<uint16_t>(3 + (7 * i * i + i / 5) % 40);
      file.write(reinterpret_cast<const char*>(&token), sizeof(token));
    }
  }

  TrainingConfig config(const std::vector<std::string>& overrides) const {
    return read_training_config(runtime::ConfigReader(
        json{
            {"task", "language_model"},
            {"model", {{"folder", base().string()}, {"max_length", 8}}},
            {"data", {{"train", (folder_ / "tokens.bin").string()}}},
            {"optimizer", {{"type", "sgd"}, {"lr", 0.5}}},
            {"schedule", {{"decay", "constant"}}},
            {"training",
             {{"batch_size", 2}, {"max_steps", 1}, {"clip_grad_norm", 0}}},
            {"output",
             {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}},
        "train.json",
        overrides));
  }

  /// Of one step: a file in the run folder.
  Tensors trained(
      int ranks,
      const std::vector<std::string>& overrides,
      const char* file) const {
    tests::on_ranks(ranks, [&] { run_training(config(overrides)); });
    return tensors_in(folder_ / "run" / file);
  }

  /// The names of weights that differ from the base's after one step.
  std::set<std::string> moved(
      int ranks,
      const std::vector<std::string>& overrides) const {
    const Tensors before = tensors_in(base() / "model.safetensors");
    std::set<std::string> names;
    for (const auto& [name, value] :
         trained(ranks, overrides, "model/model.safetensors")) {
      const auto found = before.find(name);
      if (found != before.end() && !value.equal(found->second)) {
        names.insert(name);
      }
    }
    return names;
  }

  static std::filesystem::path base() {
    return fixture("models") / "llama";
  }

  TemporaryFolder folder_;
};

} // namespace

TEST_F(TrainedParameters, AreChosenByName) {
  // By names in the checkpoint, and by names in the model.
  const std::set<std::string> up{
      "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"};
  const std::string train = R"(model.train=[".*\\.up_proj\\.weight"])";
  EXPECT_EQ(moved(1, {train}), up);
  EXPECT_EQ(
      moved(1, {train, R"(model.freeze=[".*layers\\.0\\..*"])"}),
      std::set<std::string>{"model.layers.1.mlp.up_proj.weight"});
  EXPECT_EQ(moved(2, {train, "sharding.zero_stage=3"}), up);
  EXPECT_EQ(moved(2, {train, "parallel.tensor=2"}), up);
  const auto all = moved(1, {});
  auto rest = moved(1, {R"(model.freeze=[".*\\.up_proj\\.weight"])"});
  EXPECT_FALSE(rest.contains(*up.begin()));
  rest.insert(up.begin(), up.end());
  EXPECT_EQ(rest, all);
}

// Names are those of the whole model: each stage has some of them.
TEST_F(TrainedParameters, AreChosenByNameOnPipelineStages) {
  EXPECT_EQ(
      moved(
          2,
          {R"(model.train=["model\\.layers\\.1\\..*up_proj.*", ".*norm.weight"])",
           R"(model.freeze=[".*layernorm.*"])",
           "parallel.pipeline=2",
           "training.accumulate=2"}),
      (std::set<std::string>{
          "model.layers.1.mlp.up_proj.weight", "model.norm.weight"}));
  tests::on_ranks(2, [&] {
    expect_error(
        [&] {
          run_training(config(
              {R"(model.train=[".*norm.weight", "model\\.layer\\..*"])",
               "parallel.pipeline=2",
               "training.accumulate=2"}));
        },
        {"model.train", "model\\.layer\\..*", "matches nothing"});
  });
}

TEST_F(TrainedParameters, SaysWhatIsWrong) {
  tests::on_ranks(1, [&] {
    expect_error(
        [&] { run_training(config({R"(model.freeze=["lm_heat.*"])"})); },
        {"model.freeze", "lm_heat.*", "lm_head"});
    expect_error(
        [&] { run_training(config({R"(model.freeze=[".*"])"})); },
        {"model.train and model.freeze leave no parameter"});
  });
  const std::string lora = R"(model.lora={"target_modules": "all-linear"})";
  expect_error(
      [&] {
        config({lora, R"(model.train=["x"])"});
      },
      {"model.train", "modules_to_save"});
  expect_error(
      [&] {
        config({lora, R"(model.freeze=["x"])"});
      },
      {"model.freeze", "exclude_modules"});
  const std::string start = R"(model.start_from={"path": "/nowhere"})";
  expect_error(
      [&] {
        config({lora, start, "model.lora.use_dora=true"});
      },
      {"model.start_from", "use_dora", "model.folder"});
  expect_error(
      [&] {
        config({lora, start, "model.lora.init=pissa"});
      },
      {"model.start_from", "init=pissa", "model.folder"});
}

TEST_F(TrainedParameters, BHasItsOwnRate) {
  const std::string lora =
      R"(model.lora={"target_modules": ["q_proj"], "init": "random"})";
  const auto after = [&](int ranks, const char* ratio, const char* rate) {
    return trained(
        ranks,
        {lora,
         std::string("model.lora.lora_plus_ratio=") + ratio,
         std::string("optimizer.lr=") + rate},
        "adapter/adapter_model.safetensors");
  };
  const Tensors start = after(1, "1", "0");
  const Tensors same = after(1, "1", "0.5");
  for (const int ranks : {1, 2}) {
    size_t compared = 0;
    for (const auto& [name, value] : after(ranks, "4", "0.5")) {
      SCOPED_TRACE(name);
      const bool is_b = name.find("lora_B") != std::string::npos;
      const torch::Tensor step = same.at(name) - start.at(name);
      if (ranks == 1) { // two have other batches
        EXPECT_TRUE((value - start.at(name))
                        .allclose((is_b ? 4 : 1) * step, 1e-4, 1e-7));
      }
      EXPECT_GT(step.abs().max().item<float>(), 1e-5);
      ++compared;
    }
    EXPECT_EQ(compared, 4U);
  }
}

// What is computed from the base when an adapter is made is the same in a run
// that goes on.
TEST_F(TrainedParameters, RunsGoOnFromTheSameBase) {
  const std::string lora = R"(model.lora={"target_modules": "all-linear"})";
  for (const char* variant :
       {"model.lora.init=pissa", "model.lora.use_dora=true"}) {
    SCOPED_TRACE(variant);
    const char* const file = "adapter/adapter_model.safetensors";
    const Tensors expected =
        trained(1, {lora, variant, "training.max_steps=3"}, file);
    const Tensors first = trained(
        1,
        {lora, variant, "training.max_steps=2", "training.save_every=1"},
        file);
    const Tensors second = trained(
        1,
        {lora,
         variant,
         "training.max_steps=3",
         "training.resume=true",
         "output.overwrite=false"},
        file);
    ASSERT_EQ(second.size(), expected.size());
    size_t moved = 0;
    for (const auto& [name, value] : second) {
      EXPECT_TRUE(value.equal(expected.at(name))) << name;
      moved += value.equal(first.at(name)) ? 0 : 1;
    }
    EXPECT_GT(moved, 0U);
    // With the adapter, the base is what the merged model is.
    tests::on_ranks(1, [&] {
      const auto model = zoo::from_pretrained(base());
      zoo::load_lora(*model, folder_ / "run" / "adapter");
      zoo::save_merged(*model, folder_ / "merged");
    });
    tests::on_ranks(1, [&] {
      run_training(config(
          {lora, variant, "training.max_steps=3", "model.lora.merge=true"}));
    });
    const Tensors merged = tensors_in(folder_ / "merged" / "model.safetensors");
    for (const auto& [name, value] :
         tensors_in(folder_ / "run" / "model" / "model.safetensors")) {
      EXPECT_TRUE(value.allclose(merged.at(name), 1e-5, 1e-6)) << name;
    }
  }
}

// As PEFT saves several adapters: "default" in the folder itself.
TEST_F(TrainedParameters, AdaptersInOneFolderAreLoadedByName) {
  const std::filesystem::path all = folder_ / "all";
  const auto save = [&](const std::filesystem::path& to, int64_t r) {
    const auto model = zoo::from_pretrained(base());
    zoo::LoraConfig adapter;
    adapter.r = r;
    adapter.target_modules.names = {"q_proj"};
    zoo::apply_lora(*model, adapter);
    zoo::save_lora(*model, to);
  };
  save(all / "second", 2);
  save(all / "first", 1);
  EXPECT_EQ(
      zoo::adapters_in(all), (std::vector<std::string>{"first", "second"}));
  const auto model = zoo::from_pretrained(base());
  expect_error(
      [&] { zoo::load_lora(*model, all); },
      {"adapter_config.json\" does not exist",
       "has the adapters first, second",
       "/first"});
  const auto rank_of = [&](const std::string& name) {
    const auto loaded = zoo::from_pretrained(base());
    return zoo::load_lora(*loaded, zoo::adapter_folder(all, name)).r;
  };
  EXPECT_EQ(rank_of("first"), 1);
  EXPECT_EQ(rank_of("second"), 2);
  expect_error(
      [&] { rank_of("default"); },
      {"no adapter 'default'", "it has first, second"});
  // The folder itself is an adapter, too.
  std::filesystem::copy(all / "second", all);
  EXPECT_EQ(zoo::adapters_in(all).front(), "default");
  EXPECT_EQ(rank_of("default"), 2);
  EXPECT_TRUE(zoo::adapters_in(all / "third").empty());
}

} // namespace tessera::tasks::trained_parameters_test

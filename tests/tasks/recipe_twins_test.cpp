// SPDX-License-Identifier: Apache-2.0
// The recipes of published models fit the devices that configs/README.md names,
// and train for two steps on a small twin of the model with the same keys.
#include "support/forked_ranks.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/run_training.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tools/trained_run.h"
#include "zoo/image_files.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::recipe_twins_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Recipe {
  const char* name; ///< of configs/NAME.json
  const char* model; ///< of configs/models/MODEL.json
  int devices;
  int64_t device_gib;
  /// Makes the model small.
  json twin;
  std::vector<std::string> twin_keys; ///< overrides
  int twin_ranks = 1;
};

void PrintTo(const Recipe& recipe, std::ostream* out) { // NOLINT: GoogleTest's
  *out << recipe.name;
}

constexpr int kDocumentEnd = 3;

std::vector<Recipe> recipes() {
  const json gpt2 = {
      {"vocab_size", 40},
      {"n_positions", 32},
      {"n_embd", 32},
      {"n_layer", 4},
      {"n_head", 4}};
  const json glm = {
      {"vocab_size", 40},
      {"hidden_size", 32},
      {"num_layers", 2},
      {"num_attention_heads", 4},
      {"max_sequence_length", 56},
      {"pad_token_id", 0}};
  const json llama = {
      {"vocab_size", 40},
      {"hidden_size", 32},
      {"intermediate_size", 64},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"max_position_embeddings", 32}};
  json qwen = llama;
  qwen.update(
      {{"head_dim", 8}, {"moe_intermediate_size", 16}, {"num_experts", 16}});
  const std::string special =
      R"(data.special_tokens={"start": 1, "end": 2, "document_end": 3,
          "mask": 4, "sentence_mask": 5, "document_mask": 6, "piece_start": 7,
          "piece_end": 8, "first_sentinel": 11})";
  const std::vector<std::string> blanks{
      special, "data.tokenizer=", "data.blanks.sentence_ends=[12]"};
  return {
      {"finetune_bert_large",
       "bert_large",
       1,
       11,
       {{"hidden_size", 32},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 4},
        {"intermediate_size", 64},
        {"max_position_embeddings", 32}},
       {}},
      {"pretrain_gpt2_124m", "gpt2_124m", 8, 24, gpt2, {}, 2},
      {"pretrain_gpt2_1.5b", "gpt2_1.5b", 8, 40, gpt2, {}, 2},
      {"pretrain_t5_base",
       "t5_base",
       8,
       24,
       {{"vocab_size", 40},
        {"d_model", 32},
        {"d_kv", 8},
        {"d_ff", 64},
        {"num_layers", 2},
        {"num_decoder_layers", 2},
        {"num_heads", 4}},
       {special, "data.tokenizer="},
       2},
      {"pretrain_glm_large", "glm_large", 8, 24, glm, blanks, 2},
      {"pretrain_glm_10b", "glm_10b", 8, 40, glm, blanks, 2},
      {"pretrain_llama_8b", "llama_8b", 8, 80, llama, {"data.end_token=3"}, 2},
      {"train_gpt_13b",
       "gpt_13b",
       8,
       40,
       gpt2,
       {"parallel.shard=1", "parallel.tensor=2"},
       2},
      {"pretrain_gpt_175b",
       "gpt_175b",
       128,
       80,
       gpt2,
       {"parallel.shard=1", "parallel.tensor=2", "parallel.pipeline=2"},
       4},
      {"train_vit_large",
       "vit_large",
       8,
       40,
       {{"image_size", 32},
        {"hidden_size", 32},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 4},
        {"intermediate_size", 64},
        {"num_labels", 2}},
       {},
       2},
      {"pretrain_qwen3_30b_a3b",
       "qwen3_30b_a3b",
       16,
       80,
       qwen,
       {"parallel.shard=2", "parallel.expert=2"},
       2}};
}

fs::path configs() {
  return fs::path(tests::source_dir()) / "configs";
}

fs::path file_of(const Recipe& recipe) {
  return configs() / (std::string(recipe.name) + ".json");
}

json model_of(const Recipe& recipe) {
  return read_json(
      configs() / "models" / (std::string(recipe.model) + ".json"));
}

/// A twin on data of its own.
class Twin {
 public:
  explicit Twin(const Recipe& recipe)
      : recipe_(recipe), given_(read_json(file_of(recipe))) {
    write_data();
    json model = model_of(recipe);
    model.update(recipe.twin);
    if (given_.at("model").contains("folder")) {
      tests::on_ranks(1, [&] { write_weights(model); });
    } else {
      runtime::write_file_atomically(folder_ / "config.json", model.dump());
    }
  }

  TrainingConfig read() const {
    std::vector<std::string> overrides{
        "training.batch_size=2",
        "training.accumulate=2",
        "training.max_steps=2",
        "output.folder=" + (folder_ / "run").string(),
        "data.train=" + (folder_ / "data").string(),
        "data.heldout=" + (folder_ / "data").string()};
    const json& model = given_.at("model");
    overrides.push_back(
        model.contains("folder")
            ? "model.folder=" + (folder_ / "model").string()
            : "model.config=" + (folder_ / "config.json").string());
    if (model.contains("checkpoint_layers")) {
      overrides.emplace_back("model.checkpoint_layers=1");
    }
    if (model.contains("max_length")) {
      const bool has_blanks = given_.at("data").contains("blanks");
      overrides.push_back(
          formatted("model.max_length={}", has_blanks ? 64 : 32));
    }
    if (given_.at("data").contains("objective")) {
      overrides.push_back(formatted("data.end_token={}", kDocumentEnd));
    }
    overrides.insert(
        overrides.end(), recipe_.twin_keys.begin(), recipe_.twin_keys.end());
    return read_training_config(file_of(recipe_), overrides);
  }

 private:
  /// What the recipe's task reads.
  void write_data() const {
    const fs::path data = folder_ / "data";
    if (given_.at("task") == "image_folder") {
      zoo::write_tinted_images(data, 16, 3);
    } else if (given_.at("task") == "text_classification") {
      write_examples(data);
    } else {
      write_tokens(data, given_.at("data").value("token_type", "uint16"));
    }
  }

  /// Documents that count.
  static void write_tokens(const fs::path& path, const std::string& type) {
    std::ofstream file(path, std::ios::binary);
    const auto put = [&](int token) {
      file.put(static_cast<char>(token));
      for (int i = 1; i < (type == "int32" ? 4 : 2); ++i) {
        file.put('\0');
      }
    };
    for (int document = 0; document < 120; ++document) {
      for (int i = 0; i < 8 + document * 7 % 40; ++i) {
        put(12 + (document * 11 + i) % 5);
      }
      put(kDocumentEnd);
    }
  }

  void write_weights(json model) const {
    const auto tokenizer = fixture("tokenizers") / "bert.json";
    if (model.at("model_type") == "bert") {
      model["vocab_size"] = text::Tokenizer::from_file(tokenizer).size();
    }
    zoo::save_pretrained(*zoo::from_config(model), folder_ / "model");
    fs::copy(tokenizer, folder_ / "model" / "tokenizer.json");
  }

  const Recipe& recipe_;
  json given_;
  const TemporaryFolder folder_;
};

class RecipeTwin : public ::testing::TestWithParam<Recipe> {};

} // namespace

// What is reserved is the default of `tessera plan`.
TEST_P(RecipeTwin, FitsItsDevices) {
  const Recipe& recipe = GetParam();
  const TemporaryFolder folder;
  runtime::write_file_atomically(
      folder / "config.json", model_of(recipe).dump());
  const bool has_weights =
      read_json(file_of(recipe)).at("model").contains("folder");
  TrainingConfig config = read_training_config(
      file_of(recipe),
      {has_weights ? "model.folder=" + folder.path().string()
                   : "model.config=" + (folder / "config.json").string()});
  // More micro-batches than a pipeline has in flight are like these.
  config.trainer.accumulate = std::min<int64_t>(
      config.trainer.accumulate,
      std::max(2, 2 * config.parallel.sizes.pipeline));
  constexpr double kGib = int64_t{1} << 30;
  // In a process of its own, as the twin has to come first.
  const auto job = tests::on_ranks(1, [&] {
    for (const StepMemoryPlan& stage :
         plan_training(config, recipe.devices, 0, c10::DeviceType::CUDA)) {
      const double peak = static_cast<double>(stage.peak_bytes) / kGib;
      EXPECT_LT(peak, static_cast<double>(recipe.device_gib) - 1.5);
      std::printf(
          "%-24s rank %3d: %6.2f GiB of %lld, activations %.2f\n",
          recipe.name,
          stage.rank,
          peak,
          static_cast<long long>(recipe.device_gib),
          static_cast<double>(stage.peak.activations) / kGib);
    }
  });
  std::printf("%s", job.output.c_str());
  std::ifstream readme(configs() / "README.md");
  const std::string begin = formatted("| `{}.json` |", recipe.name);
  std::string line;
  while (std::getline(readme, line) && !line.starts_with(begin)) {
  }
  const std::string devices =
      formatted("{} x {} GiB", recipe.devices, recipe.device_gib);
  EXPECT_NE(line.find(devices), std::string::npos)
      << "configs/README.md does not name " << devices << " in '" << begin
      << "'";
}

TEST_P(RecipeTwin, TrainsOnASmallTwin) {
  const Recipe& recipe = GetParam();
  const Twin twin(recipe);
  tests::on_ranks(recipe.twin_ranks, [&] {
    const TrainingResult result = run_training(twin.read());
    EXPECT_EQ(result.summary.steps, 2);
    EXPECT_TRUE(std::isfinite(result.summary.last_loss));
    EXPECT_GT(result.summary.last_loss, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Recipes,
    RecipeTwin,
    ::testing::ValuesIn(recipes()),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

} // namespace tessera::tasks::recipe_twins_test

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A BERT trained by the trainer on a device: batches, losses and times.

#include "support/temporary_folder.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "zoo/small_bert.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::tests::device_trainer {

inline nlohmann::json without_dropout() {
  return {
      {"vocab_size", 500},
      {"hidden_size", 64},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 4},
      {"intermediate_size", 128},
      {"max_position_embeddings", 32},
      {"hidden_dropout_prob", 0.0},
      {"attention_probs_dropout_prob", 0.0}};
}

/// The same tokens on every device.
class TokensTask : public TrainingTask {
 public:
  TokensTask(std::shared_ptr<zoo::Model> model, c10::Device device)
      : model_(std::move(model)), device_(device) {}

  int64_t batch_size() const override {
    return 4;
  }
  int64_t batches_per_epoch() const override {
    return 20;
  }
  void begin_epoch(int64_t) override {}
  void load(int64_t index) override {
    torch::manual_seed(index);
    input_.input_ids =
        runtime::to_device(torch::randint(500, {4, 32}), device_);
    input_.labels = runtime::to_device(torch::randint(2, {4}), device_);
  }
  MicroBatch forward(int64_t) override {
    return {model_->forward(input_).loss, 128};
  }

 private:
  std::shared_ptr<zoo::Model> model_;
  c10::Device device_;
  zoo::ModelInput input_;
};

inline std::vector<nlohmann::json> train_on(
    World& world,
    c10::Device device,
    int64_t checkpointed_layers,
    std::optional<at::ScalarType> dtype,
    const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  torch::manual_seed(3); // models of the zoo draw the seeds of their weights
  const auto model = lazy([] { return small_bert(without_dropout()); });
  move_module(*model, device);
  EngineOptions options;
  options.log_memory = false;
  options.precision.parameters = dtype;
  auto engine = wrap(model, options);
  model->train();
  model->recompute({.layers = checkpointed_layers});
  TokensTask task(model, device);
  TrainerOptions trainer;
  trainer.max_steps = 6;
  trainer.accumulate = 2;
  trainer.log_every = 2;
  trainer.clip_grad_norm = 1;
  trainer.run_folder = folder;
  train(world, engine, task, trainer);
  std::vector<nlohmann::json> lines;
  std::istringstream all(runtime::read_text_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(all, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

/// Of one rank. Also with recomputed layers.
inline void expect_losses_of_the_cpu(
    World& world,
    const std::filesystem::path& folder) {
  const auto on_cpu =
      train_on(world, at::kCPU, 0, std::nullopt, folder / "cpu");
  const auto on_device =
      train_on(world, world.device(), 0, std::nullopt, folder / "device");
  const auto again =
      train_on(world, world.device(), 3, std::nullopt, folder / "again");
  ASSERT_EQ(on_device.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const double loss = on_device[i]["loss"];
    // Float32 sums in other orders, over six steps of AdamW.
    EXPECT_NEAR(loss, on_cpu[i]["loss"].get<double>(), 1e-3);
    EXPECT_NEAR(loss, again[i]["loss"].get<double>(), 1e-4);
    EXPECT_EQ(on_device[i]["flops"], on_cpu[i]["flops"]);
    EXPECT_EQ(again[i]["flops"], on_cpu[i]["flops"]);
    EXPECT_GT(on_device[i]["forward_s"], 0);
    EXPECT_GT(on_device[i]["backward_s"], 0);
    EXPECT_GT(on_device[i]["optimizer_s"], 0);
    EXPECT_GT(on_device[i]["memory_bytes"], 0);
  }
}

inline void expect_training_with_loss_scaling(
    World& world,
    const std::filesystem::path& folder) {
  const auto lines =
      train_on(world, world.device(), 2, at::kHalf, folder / "half");
  for (const auto& line : lines) {
    EXPECT_LT(line["loss"], 2); // random guesses among two: 0.69
  }
}

inline void expect_batches_through_pinned_memory(World& world) {
  const at::Tensor host = torch::arange(1000);
  const at::Tensor there = runtime::to_device(host, world.device());
  EXPECT_EQ(there.device(), world.device());
  EXPECT_TRUE(there.cpu().equal(host));
  runtime::reset_peak_bytes(world.device());
  const int64_t before = runtime::peak_bytes(world.device());
  const at::Tensor more = torch::empty({1 << 20}, there.options());
  EXPECT_EQ(runtime::peak_bytes(world.device()) - before, 8 << 20);
}

} // namespace tessera::tests::device_trainer

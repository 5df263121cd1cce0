// SPDX-License-Identifier: Apache-2.0
// A BERT trained by the trainer on CUDA: batches, losses and times.
#include "support/cuda_ranks_test.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/step_timing.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/move_module.h"
#include "zoo/small_bert.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace tessera::engine::trainer_gpu_test {

namespace {

using namespace tests;

class TrainerCuda : public CudaRanksTest {};

nlohmann::json without_dropout() {
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

std::vector<nlohmann::json> train_on(
    World& world,
    c10::Device device,
    int64_t checkpointed_layers,
    std::optional<at::ScalarType> dtype,
    const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const auto model =
      lazy([] { return small_bert(without_dropout()); }, {.seed = 3});
  move_module(*model, device);
  EngineOptions options;
  options.log_memory = false;
  options.sharding.precision.parameters = dtype;
  auto engine = wrap(model, options);
  model->train();
  model->set_recomputed_layers(checkpointed_layers);
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

} // namespace

TEST_F(TrainerCuda, TheLossesAreThoseOfTheCpu) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        const auto on_cpu =
            train_on(world, at::kCPU, 0, std::nullopt, folder.path() / "cpu");
        const auto on_cuda = train_on(
            world, world.device(), 0, std::nullopt, folder.path() / "cuda");
        const auto again = train_on(
            world, world.device(), 3, std::nullopt, folder.path() / "again");
        ASSERT_EQ(on_cuda.size(), 3U);
        for (size_t i = 0; i < 3; ++i) {
          const double loss = on_cuda[i]["loss"];
          // Float32 sums in other orders, over six steps of AdamW.
          EXPECT_NEAR(loss, on_cpu[i]["loss"].get<double>(), 1e-3);
          EXPECT_NEAR(loss, again[i]["loss"].get<double>(), 1e-4);
          EXPECT_GT(on_cuda[i]["forward_s"], 0);
          EXPECT_GT(on_cuda[i]["backward_s"], 0);
          EXPECT_GT(on_cuda[i]["optimizer_s"], 0);
          EXPECT_GT(on_cuda[i]["memory_bytes"], 0);
        }
      },
      kLimits);
}

TEST_F(TrainerCuda, TrainsInFloat16WithLossScaling) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        const auto lines = train_on(
            world, world.device(), 2, at::kHalf, folder.path() / "half");
        for (const auto& line : lines) {
          EXPECT_LT(line["loss"], 2); // random guesses among two: 0.69
        }
      },
      kLimits);
}

// The device is far behind the host: what it takes is not what the host takes.
TEST_F(TrainerCuda, PhasesAreTimedOnTheDevice) {
  run_ranks(
      1,
      [](World& world) {
        const at::Tensor a = torch::randn({4096, 4096}, world.device());
        TransferWaits waits;
        StepTiming timing(world.device(), waits);
        timing.begin(StepPhase::kData);
        timing.begin(StepPhase::kForward);
        at::Tensor b = a;
        for (int i = 0; i < 20; ++i) {
          b = b.mm(a) * 1e-3;
        }
        timing.begin(StepPhase::kBackward);
        timing.end();
        const StepSplit split = timing.take();
        EXPECT_GT(split.forward, 10 * (split.data + split.backward));
      },
      kLimits);
}

TEST_F(TrainerCuda, BatchesTravelThroughPinnedMemory) {
  run_ranks(
      1,
      [](World& world) {
        const at::Tensor host = torch::arange(1000);
        const at::Tensor there = runtime::to_device(host, world.device());
        EXPECT_TRUE(there.is_cuda());
        EXPECT_TRUE(there.cpu().equal(host));
        runtime::reset_peak_bytes(world.device());
        const int64_t before = runtime::peak_bytes(world.device());
        const at::Tensor more = torch::empty({1 << 20}, there.options());
        EXPECT_EQ(runtime::peak_bytes(world.device()) - before, 8 << 20);
      },
      kLimits);
}

} // namespace tessera::engine::trainer_gpu_test

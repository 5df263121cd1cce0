// SPDX-License-Identifier: Apache-2.0
// A model of each family on a CUDA device: forward, backward and two steps,
// with the losses of the same steps of plain LibTorch on the CPU.

#include "support/cuda_ranks_test.h"
#include "tessera/engine/engine.h"
#include "zoo/model_fixture.h"

#include <vector>

namespace tessera::zoo::smoke_gpu_test {
namespace {

constexpr double kLearningRate = 0.05;
constexpr int kSteps = 3; // the last loss has two updates behind it

class ZooOnCuda : public tests::CudaRanksTest,
                  public ::testing::WithParamInterface<const char*> {};

ModelInput on_device(const ModelInput& input, c10::Device device) {
  NamedTensors moved = input.named();
  for (auto& [name, tensor] : moved) {
    tensor = tensor.to(device);
  }
  return ModelInput::from_named(moved);
}

std::vector<double> losses_of_plain(const std::string& name) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder());
  const ModelInput input = ModelInput::from_named(reference.tensors("in."));
  torch::optim::SGD optimizer(model->parameters(), kLearningRate);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(model->forward(input), input);
    losses.push_back(loss.item<double>());
    loss.backward();
    optimizer.step();
  }
  return losses;
}

std::vector<double> losses_of_wrapped(World& world, const std::string& name) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder(), {.lazy = true});
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.rule = SgdOptions{};
  options.optimizer.lr = kLearningRate;
  options.optimizer.weight_decay = 0;
  Engine engine(world, model, options);
  const ModelInput input = on_device(
      ModelInput::from_named(reference.tensors("in.")), world.device());
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = loss_of(model->forward(input), input);
    losses.push_back(loss.item<double>());
    engine.backward(loss);
    engine.step();
  }
  return losses;
}

} // namespace

TEST_P(ZooOnCuda, TrainsAsPlainLibTorchOnTheCpu) {
  const std::string name = GetParam();
  tests::run_ranks(
      1,
      [&](World& world) {
        const auto expected = losses_of_plain(name);
        const auto found = losses_of_wrapped(world, name);
        // fp32 sums in another order, over two updates.
        const double tolerance = 1e-4 * std::abs(expected.front()) + 1e-5;
        for (int step = 0; step < kSteps; ++step) {
          EXPECT_NEAR(found[step], expected[step], tolerance)
              << "step " << step;
        }
        EXPECT_GT(std::abs(expected.back() - expected.front()), 10 * tolerance)
            << "the updates change nothing that could be seen";
      },
      kLimits);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ZooOnCuda,
    ::testing::Values(
        "bert_classifier",
        "chatglm",
        "cpm1",
        "cpm2",
        "glm",
        "glm4",
        "glm_2021",
        "gpt2",
        "gptj",
        "llama3",
        "llama_yarn",
        "longformer",
        "mae",
        "moco",
        "mt5",
        "opt_350m",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "roberta",
        "swin_classifier",
        "t5_classifier",
        "vit_classifier"),
    [](const auto& one) { return std::string(one.param); });

} // namespace tessera::zoo::smoke_gpu_test

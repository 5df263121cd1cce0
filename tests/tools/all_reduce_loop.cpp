// SPDX-License-Identifier: Apache-2.0
// A rank that trains until somebody ends it: a linear layer whose gradients
// are averaged over the ranks. Prints its process and every tenth step.

#include "tessera/runtime/comm/init.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <memory>

namespace tessera {

namespace {

void train_forever() {
  constexpr int kWidth = 64;
  constexpr double kLearningRate = 1e-3;
  constexpr int kStepsPerLine = 10;
  at::set_num_threads(1);
  World& world = init();
  std::cout << "process " << ::getpid() << std::endl;
  const auto communicator = world.new_communicator("gradients");
  torch::manual_seed(world.rank());
  torch::nn::Linear layer(kWidth, kWidth);
  for (int step = 1;; ++step) {
    layer->zero_grad();
    const auto input = torch::randn({kWidth, kWidth});
    torch::mse_loss(layer(input), input).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : layer->parameters()) {
      communicator->all_reduce_sum(parameter.grad(), "gradient").wait();
      parameter.sub_(parameter.grad(), kLearningRate / world.size());
    }
    if (step % kStepsPerLine == 0) {
      std::cout << "step " << step << std::endl;
    }
  }
}

} // namespace

} // namespace tessera

int main() {
  try {
    tessera::train_forever();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
// A rank that trains until somebody ends it: a linear layer whose gradients
// are averaged over the ranks. Prints its process and every tenth step.
//
//   all_reduce_loop [FAILING_RANK [STEPS]]
//
// The failing rank fails at step 20 and takes its time to end, with code 5.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

namespace tessera {

namespace {

void train(int failing_rank, int steps) {
  constexpr int kWidth = 64;
  constexpr double kLearningRate = 1e-3;
  constexpr int kStepsPerLine = 10;
  constexpr int kFailingStep = 20;
  at::set_num_threads(1);
  World& world = init();
  std::cout << "process " << ::getpid() << std::endl;
  const auto communicator = world.new_communicator("gradients");
  torch::manual_seed(world.rank());
  torch::nn::Linear layer(kWidth, kWidth);
  for (int step = 1; step <= steps; ++step) {
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
    if (step == kFailingStep && world.rank() == failing_rank) {
      throw std::runtime_error("the data has ended");
    }
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  const int failing_rank = argc > 1 ? std::atoi(argv[1]) : -1;
  const int steps =
      argc > 2 ? std::atoi(argv[2]) : std::numeric_limits<int>::max();
  try {
    tessera::train(failing_rank, steps);
  } catch (const std::runtime_error& error) {
    std::cerr << error.what() << std::endl;
    if (tessera::world().rank() == failing_rank) {
      // Longer than the others wait for its end, and not so long that the
      // launcher gives it up.
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return 5;
    }
    return 1;
  }
}

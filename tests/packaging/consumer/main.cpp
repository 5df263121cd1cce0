// SPDX-License-Identifier: Apache-2.0
// The README's loop in a program of somebody else's.
#include "tessera/tessera.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>

int main() {
  tessera::World& world = tessera::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(
      torch::nn::Linear(8, 16), torch::nn::Linear(16, 1));
  tessera::EngineOptions options;
  options.optimizer.lr = 1e-2;
  auto engine = tessera::wrap(model, options);
  const auto input = torch::randn({32, 8});
  const auto target = input.sum(1, /*keepdim=*/true);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 50; ++step) {
    const auto loss = torch::mse_loss(model->forward(input), target);
    last = loss.item<double>();
    first = step == 0 ? last : first;
    engine.backward(loss);
    engine.clip_grad_norm(1.0);
    engine.step();
  }
  std::printf(
      "rank %d of %d: loss %.3f -> %.3f\n",
      world.rank(),
      world.size(),
      first,
      last);
  return last < first / 2 ? 0 : 1;
}

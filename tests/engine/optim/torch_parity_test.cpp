// SPDX-License-Identifier: Apache-2.0
// Optimizers that LibTorch has too, in float32, on the average of the gradients
// of all ranks' batches: the same bits, save for LibTorch's square roots.
#include "engine/parity.h"
#include "support/ranks.h"
#include "tessera/engine/schedule/lr_scheduler.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::engine::torch_parity_test {

namespace {

using namespace tests;

/// Odd sizes; a frozen layer; a layer that only even steps use.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl()
      : first(register_module("first", torch::nn::Linear(7, 13))),
        frozen(register_module("frozen", torch::nn::Linear(13, 13))),
        sometimes(register_module("sometimes", torch::nn::Linear(13, 13))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(std::vector<int64_t>{13}))),
        last(register_module("last", torch::nn::Linear(13, 3))) {
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x, bool use_sometimes) {
    at::Tensor y = torch::relu(frozen(first(x)));
    if (use_sometimes) {
      y = y + sometimes(y);
    }
    return last(norm(y));
  }
  torch::nn::Linear first, frozen, sometimes;
  torch::nn::LayerNorm norm;
  torch::nn::Linear last;
};
TORCH_MODULE(OddNet);

/// Makes what takes a step with the gradients of these parameters.
using MakeStep = std::function<std::function<void()>(
    const std::vector<at::Tensor>& parameters)>;

/// Seven steps, every rank on batches of its own.
/// @param fraction see expect_close_by_motion().
void expect_same_training(
    const World& world,
    const OptimizerOptions& optimizer,
    const MakeStep& make_step,
    double fraction,
    const std::optional<LrScheduleOptions>& schedule,
    int64_t min_group_numel) {
  PlainRanks<OddNet> plain([] { return OddNet(); }, world.size(), 3);
  torch::manual_seed(3);
  OddNet wrapped;
  const Weights start = weights_of(*plain.model());
  const auto plain_step = make_step(trainable(*plain.model()));
  EngineOptions options;
  options.log_memory = false;
  options.optimizer = optimizer;
  options.sharding.groups.min_group_numel = min_group_numel;
  auto engine = wrap(wrapped, options);
  LrScheduler scheduler(optimizer.lr, schedule.value_or(LrScheduleOptions{}));
  for (int step = 0; step < 7; ++step) {
    const auto loss_of = [step](OddNet& net, int rank) {
      torch::manual_seed(50 + step + 100 * rank);
      return net->forward(torch::randn({5, 7}), step % 2 == 0).square().mean();
    };
    plain.backward(0, world.rank(), loss_of);
    plain.finish_gradients();
    plain_step();
    plain.follow();
    if (schedule) {
      scheduler.step(engine);
    }
    engine.backward(loss_of(wrapped, world.rank()));
    engine.step();
  }
  expect_same_parameters(
      engine, *plain.model(), start, fraction, name_of(optimizer.rule));
}

void expect_same_training(
    const World& world,
    const OptimizerOptions& optimizer,
    const MakeStep& make_step,
    double fraction = 0,
    const std::optional<LrScheduleOptions>& schedule = {}) {
  for (const int64_t min_group_numel : {0, 100'000}) {
    expect_same_training(
        world, optimizer, make_step, fraction, schedule, min_group_numel);
  }
}

template <typename Optimizer, typename Options>
MakeStep maker(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return [plain = std::make_shared<Optimizer>(parameters, options)] {
      plain->step();
    };
  };
}

/// LibTorch's square root may be off by a unit in the last place. eps keeps
/// that, in an element whose gradient is nearly zero, from being made a step
/// of.
constexpr double kRootFraction = 1e-5;
constexpr double kEps = 1e-3;

} // namespace

class TorchParity : public ::testing::TestWithParam<int> {};

TEST_P(TorchParity, Sgd) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options;
    options.lr = 0.05;
    options.rule = SgdOptions{};
    using torch::optim::SGD;
    torch::optim::SGDOptions plain(options.lr);
    const auto expect_same = [&](const torch::optim::SGDOptions& sgd) {
      expect_same_training(world, options, maker<SGD>(sgd));
    };
    expect_same(plain);
    options.weight_decay = 0.02;
    expect_same(plain.weight_decay(0.02));
    options.rule = SgdOptions{.momentum = 0.9, .dampening = 0.1};
    expect_same(plain.momentum(0.9).dampening(0.1));
    options.rule = SgdOptions{.momentum = 0.9, .nesterov = true};
    expect_same(plain.dampening(0).nesterov(true));
  });
}

TEST_P(TorchParity, LearningRateOfEveryStep) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options;
    options.lr = 0.05;
    options.rule = SgdOptions{};
    const MakeStep warmed_up = [](const std::vector<at::Tensor>& parameters) {
      using torch::optim::SGDOptions;
      auto sgd =
          std::make_shared<torch::optim::SGD>(parameters, SGDOptions(0.05));
      return [sgd, step = 0]() mutable {
        const double rate = 0.05 * std::min(1.0, ++step / 4.0);
        static_cast<SGDOptions&>(sgd->param_groups()[0].options()).lr(rate);
        sgd->step();
      };
    };
    LrScheduleOptions schedule;
    schedule.decay = LrDecay::kConstant;
    schedule.warmup_steps = 4;
    schedule.total_steps = 7;
    expect_same_training(world, options, warmed_up, 0, schedule);
  });
}

TEST_P(TorchParity, Adam) {
  run_ranks(GetParam(), [](World& world) {
    for (const double weight_decay : {0.0, 0.1}) {
      OptimizerOptions options;
      options.lr = 0.01;
      options.weight_decay = weight_decay;
      options.rule = AdamOptions{.beta2 = 0.99};
      expect_same_training(
          world,
          options,
          maker<PlainAdamW>(PlainAdamWOptions{
              .lr = 0.01,
              .beta2 = 0.99,
              .weight_decay = weight_decay,
              .decoupled = false}));
      options.rule = AdamOptions{.beta2 = 0.99, .eps = kEps};
      expect_same_training(
          world,
          options,
          maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01)
                                        .betas({0.9, 0.99})
                                        .eps(kEps)
                                        .weight_decay(weight_decay)),
          kRootFraction);
    }
  });
}

TEST_P(TorchParity, AdamW) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.rule = AdamWOptions{};
    expect_same_training(
        world,
        options,
        maker<PlainAdamW>(PlainAdamWOptions{.lr = 0.01, .weight_decay = 0.1}));
    options.rule = AdamWOptions{.eps = kEps};
    expect_same_training(
        world,
        options,
        maker<torch::optim::AdamW>(
            torch::optim::AdamWOptions(0.01).eps(kEps).weight_decay(0.1)),
        kRootFraction);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, TorchParity, ::testing::Range(1, 5));

} // namespace tessera::engine::torch_parity_test

// SPDX-License-Identifier: Apache-2.0
// Optimizers that LibTorch has too: the same bits, in float32, where the order
// of sums is the same (see [Note: parity tolerances]).
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::torch_parity_test {

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

using MakePlain = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<at::Tensor>&)>;

std::vector<at::Tensor> trainable(torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) {
      result.push_back(parameter);
    }
  }
  return result;
}

/// Seven steps with every rank on the same batch; worlds of one and two, whose
/// averages are exact, must give the plain run's bits.
void expect_same_bits(
    const OptimizerOptions& optimizer,
    const MakePlain& make_plain,
    int64_t min_group_numel) {
  torch::manual_seed(3);
  OddNet plain;
  torch::manual_seed(3);
  OddNet wrapped;
  const auto plain_optimizer = make_plain(trainable(*plain));
  EngineOptions options;
  options.log_memory = false;
  options.optimizer = optimizer;
  options.sharding.groups.min_group_numel = min_group_numel;
  auto engine = wrap(wrapped, options);
  for (int step = 0; step < 7; ++step) {
    torch::manual_seed(50 + step);
    const auto x = torch::randn({5, 7});
    plain_optimizer->zero_grad();
    plain->forward(x, step % 2 == 0).square().mean().backward();
    plain_optimizer->step();
    engine.backward(wrapped->forward(x, step % 2 == 0).square().mean());
    engine.step();
  }
  const auto expected = plain->named_parameters();
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    EXPECT_TRUE(torch::equal(v, expected[name]))
        << name_of(optimizer.rule) << ", " << name << " is off by "
        << (v - expected[name]).abs().max().item<double>();
  });
}

void expect_same_bits(
    const OptimizerOptions& optimizer,
    const MakePlain& make_plain) {
  for (const int64_t min_group_numel : {0, 100'000}) {
    expect_same_bits(optimizer, make_plain, min_group_numel);
  }
}

template <typename Optimizer, typename Options>
MakePlain maker(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

} // namespace

class TorchParity : public ::testing::TestWithParam<int> {};

TEST_P(TorchParity, Sgd) {
  run_ranks(GetParam(), [](World&) {
    OptimizerOptions options;
    options.lr = 0.05;
    options.rule = SgdOptions{};
    using torch::optim::SGD;
    torch::optim::SGDOptions plain(options.lr);
    expect_same_bits(options, maker<SGD>(plain));
    options.weight_decay = 0.02;
    expect_same_bits(options, maker<SGD>(plain.weight_decay(0.02)));
    options.rule = SgdOptions{.momentum = 0.9, .dampening = 0.1};
    expect_same_bits(options, maker<SGD>(plain.momentum(0.9).dampening(0.1)));
    options.rule = SgdOptions{.momentum = 0.9, .nesterov = true};
    expect_same_bits(options, maker<SGD>(plain.dampening(0).nesterov(true)));
  });
}

TEST_P(TorchParity, Adam) {
  run_ranks(GetParam(), [](World&) {
    OptimizerOptions options;
    options.lr = 0.01;
    options.rule = AdamOptions{.beta2 = 0.99};
    using torch::optim::Adam;
    torch::optim::AdamOptions plain(options.lr);
    plain.betas({0.9, 0.99});
    expect_same_bits(options, maker<Adam>(plain));
    options.weight_decay = 0.1;
    expect_same_bits(options, maker<Adam>(plain.weight_decay(0.1)));
  });
}

TEST_P(TorchParity, AdamW) {
  run_ranks(GetParam(), [](World&) {
    OptimizerOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.rule = AdamWOptions{};
    torch::optim::AdamWOptions plain(options.lr);
    expect_same_bits(
        options, maker<torch::optim::AdamW>(plain.weight_decay(0.1)));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, TorchParity, ::testing::Range(1, 3));

} // namespace tessera::torch_parity_test

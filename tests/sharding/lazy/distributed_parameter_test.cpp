// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/paging/pager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding::distributed_parameter_test {

namespace {

struct LinearImpl : DistributedModule {
  LinearImpl(int64_t in, int64_t out)
      : weight(register_parameter(
            "weight",
            DistributedParameter({out, in}, xavier_normal_init()))),
        bias(register_parameter(
            "bias",
            DistributedParameter({out}, uniform_init(-0.1, 0.1)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::nn::functional::linear(x, weight, bias);
  }
  DistributedParameter weight;
  DistributedParameter bias;
};
TORCH_MODULE(Linear);

struct NetImpl : torch::nn::Module {
  NetImpl() : first(40, 33), second(33, 21) {
    register_module("first", first);
    register_module("second", second);
    // An ordinary one among them.
    register_parameter("scale", torch::full({1}, 1.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(first(x).tanh());
  }
  Linear first, second;
};

using Values = std::map<std::string, at::Tensor>;

Values values_of(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

Values materialized(uint64_t seed) {
  NetImpl net;
  init_parameters(net, seed);
  materialize(net);
  return values_of(net);
}

at::Tensor filled(const InitMethod& method, std::vector<int64_t> sizes) {
  auto module = std::make_shared<DistributedModule>();
  const at::Tensor tensor =
      module->register_parameter("p", DistributedParameter(sizes, method))
          .tensor();
  init_parameters(*module);
  materialize(*module);
  return tensor.detach();
}

/// Expects mean 0 and the given standard deviation, within four standard
/// errors of a million numbers, and as the largest value `bound`.
void expect_distribution(const at::Tensor& x, double std, double bound) {
  const double unit = 4 / std::sqrt(static_cast<double>(x.numel()));
  EXPECT_NEAR(x.mean().item<double>(), 0, unit * std);
  EXPECT_NEAR(x.std().item<double>(), std, unit * std);
  EXPECT_LE(x.abs().max().item<double>(), bound);
  EXPECT_GE(x.abs().max().item<double>(), 0.6 * bound);
}

} // namespace

TEST(DistributedParameter, InitMethods) {
  EXPECT_TRUE(torch::equal(filled(zeros_init(), {3}), torch::zeros({3})));
  EXPECT_TRUE(torch::equal(filled(ones_init(), {3}), torch::ones({3})));
  EXPECT_TRUE(
      torch::equal(filled(constant_init(-2), {3}), torch::full({3}, -2.0F)));
  const auto normal = filled(normal_init(0, 3), {1000, 1000});
  expect_distribution(normal, 3, 6.7 * 3);
  const auto uniform = filled(uniform_init(-2, 2), {1000, 1000});
  expect_distribution(uniform, 4 / std::sqrt(12), 2);

  // A 3 x 3 convolution from 300 to 400 channels.
  const std::vector<int64_t> conv{400, 300, 3, 3};
  const double in = 2700;
  const double out = 3600;
  const double root3 = std::sqrt(3);
  double std = 0.5 * std::sqrt(2 / (in + out));
  expect_distribution(filled(xavier_normal_init(0.5), conv), std, 6.7 * std);
  expect_distribution(
      filled(xavier_uniform_init(0.5), conv), std, 1.0001 * root3 * std);
  std = std::sqrt(2 / (1 + 0.25) / in);
  expect_distribution(filled(kaiming_normal_init(0.5), conv), std, 6.7 * std);
  std = std::sqrt(2 / out);
  expect_distribution(
      filled(kaiming_uniform_init(0, Fan::kOut), conv),
      std,
      1.0001 * root3 * std);
  expect_error(
      [] { filled(kaiming_normal_init(), {5}); }, {"two dimensions", "[5]"});
}

TEST(DistributedParameter, NumbersDependOnSeedAndNameAlone) {
  const Values values = materialized(7);
  const Values same = materialized(7);
  const Values other = materialized(8);
  for (const auto& [name, value] : values) {
    EXPECT_TRUE(torch::equal(value, same.at(name))) << name;
    EXPECT_EQ(torch::equal(value, other.at(name)), name == "scale") << name;
  }
  // Of the same sizes, but of another name.
  EXPECT_FALSE(torch::equal(
      values.at("first.weight").flatten().narrow(0, 0, 600),
      values.at("second.weight").flatten().narrow(0, 0, 600)));
  struct Alone : torch::nn::Module {
    Alone() {
      register_module("second", Linear(33, 21));
    }
  };
  Alone alone;
  init_parameters(alone, 7);
  materialize(alone);
  EXPECT_TRUE(torch::equal(
      alone.named_parameters()["second.weight"], values.at("second.weight")));
}

TEST(DistributedParameter, SameNumbersAtAnyWorldSize) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [](World& world) {
      NetImpl net;
      init_parameters(net, 7);
      MemoryLedger ledger;
      Pager pager(world, net, {}, ledger);
      pager.unwrap();
      const Values expected = materialized(7);
      for (const auto& [name, value] : values_of(net)) {
        EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
      }
    });
  }
}

TEST(DistributedParameter, GatherIsWholeAndItsGradientArrives) {
  for (const int ranks : {1, 2}) {
    tests::run_ranks(ranks, [](World& world) {
      const auto net = std::make_shared<NetImpl>();
      init_parameters(*net, 7);
      MemoryLedger ledger;
      Pager pager(world, *net, {}, ledger);
      const Values expected = materialized(7);
      const at::Tensor weight = net->first->weight.gather();
      EXPECT_TRUE(torch::equal(weight, expected.at("first.weight")));
      EXPECT_EQ(
          weight.const_data_ptr<float>()[0],
          expected.at("first.weight")[0][0].item<float>());
      (weight * (world.rank() + 1)).sum().backward();
      pager.settle_gradients();
      // The average over the ranks.
      const at::Tensor gradient =
          pager.scopes().full_gradient(pager.pages().find("first.weight"));
      EXPECT_TRUE(torch::equal(
          gradient, torch::full({33, 40}, (world.size() + 1) / 2.0F)));
    });
  }
}

TEST(DistributedParameter, NeedsNoMemory) {
  DistributedModule module;
  module.register_parameter(
      "p", DistributedParameter({1 << 20, 1 << 20}, normal_init()));
  init_parameters(module);
  EXPECT_EQ(module.parameters()[0].numel(), int64_t{1} << 40);
}

TEST(DistributedParameter, OptionsAreKept) {
  const DistributedParameter p(
      {4}, ones_init(), {.dtype = at::kBFloat16, .requires_grad = false});
  EXPECT_EQ(p.tensor().scalar_type(), at::kBFloat16);
  EXPECT_FALSE(p.tensor().requires_grad());
  DistributedModule module;
  module.register_parameter("p", p);
  EXPECT_FALSE(module.parameters()[0].requires_grad());
  EXPECT_TRUE(DistributedParameter({4}, ones_init()).tensor().requires_grad());
}

TEST(DistributedParameter, Errors) {
  NetImpl net;
  expect_error([&] { materialize(net); }, {"[33, 40]", "init_parameters"});
  expect_error([] { DistributedParameter({3}, nullptr); }, {"no init method"});
  tests::run_ranks(1, [](World& world) {
    NetImpl wrapped;
    init_parameters(wrapped);
    MemoryLedger ledger;
    const Pager pager(world, wrapped, {}, ledger);
    expect_error(
        [&] { init_parameters(wrapped); }, {"'scale'", "before tessera::wrap"});
  });
}

} // namespace tessera::sharding::distributed_parameter_test

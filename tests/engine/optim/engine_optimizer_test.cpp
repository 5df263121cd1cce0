// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_optimizer.h"
#include "engine/twin.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::engine::engine_optimizer_test {

namespace {

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(6, 9))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})))),
        second(register_module("second", torch::nn::Linear(9, 4))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(norm->forward(first->forward(x)).tanh());
  }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear second;
};

std::shared_ptr<Net> make_net() {
  torch::manual_seed(4);
  return std::make_shared<Net>();
}

/// Of rank `rank`; every rank has another one.
at::Tensor batch_of(int rank) {
  torch::manual_seed(100 + rank);
  return torch::randn({5, 6}, at::kDouble);
}

EngineOptions options_of(const UpdateRule& rule) {
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 0;
  options.optimizer.rule = rule;
  return options;
}

std::vector<at::Tensor> without_decay(Net& net) {
  return {net.first->bias, net.second->bias, net.norm->weight, net.norm->bias};
}

/// LibTorch's optimizer with two groups, on the batches of all ranks.
template <typename Theirs, typename Options>
std::map<std::string, at::Tensor> reference(
    const Options& options,
    double group_lr,
    int ranks,
    int steps) {
  auto net = make_net();
  auto local = options;
  local.lr(group_lr);
  local.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      std::vector<at::Tensor>{net->first->weight, net->second->weight});
  groups.emplace_back(without_decay(*net), std::make_unique<Options>(local));
  Theirs optimizer(groups, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (net->forward(batch_of(rank)).square().mean() / ranks).backward();
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& item : net->named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

template <typename Ours>
void expect_trains_like(
    World& world,
    const UpdateRule& at_wrap,
    const std::function<Ours(Engine&, std::vector<ParameterGroup>)>& make,
    double group_lr,
    const std::map<std::string, at::Tensor>& expected,
    int steps) {
  auto net = make_net();
  Engine engine(world, net, options_of(at_wrap));
  Ours optimizer = make(
      engine,
      {{.parameters = without_decay(*net),
        .lr = group_lr,
        .weight_decay = 0.0}});
  for (int step = 0; step < steps; ++step) {
    engine.backward(net->forward(batch_of(world.rank())).square().mean());
    EXPECT_TRUE(optimizer.step());
  }
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    // Float64 in another order; AdamW's root is off by a unit in LibTorch.
    EXPECT_TRUE(v.allclose(expected.at(name), 0, 1e-12)) << name;
  });
}

} // namespace

TEST(EngineOptimizer, AdamWWithGroupsIsLibTorchs) {
  const auto options =
      torch::optim::AdamWOptions(0.02).betas({0.8, 0.9}).weight_decay(0.3);
  for (const int ranks : {1, 2, 3}) {
    const auto expected =
        reference<torch::optim::AdamW>(options, 0.05, ranks, 4);
    tests::run_ranks(ranks, [&](World& world) {
      expect_trains_like<AdamW>(
          world,
          AdamWOptions{},
          [](Engine& engine, std::vector<ParameterGroup> groups) {
            return AdamW(
                engine,
                {.lr = 0.02,
                 .weight_decay = 0.3,
                 .rule = {.beta1 = 0.8, .beta2 = 0.9}},
                std::move(groups));
          },
          0.05,
          expected,
          4);
    });
  }
}

TEST(EngineOptimizer, SgdWithGroupsIsLibTorchs) {
  const auto options =
      torch::optim::SGDOptions(0.02).momentum(0.7).weight_decay(0.3);
  const auto expected = reference<torch::optim::SGD>(options, 0.05, 2, 4);
  tests::run_ranks(2, [&](World& world) {
    expect_trains_like<SGD>(
        world,
        SgdOptions{.momentum = 0.1},
        [](Engine& engine, std::vector<ParameterGroup> groups) {
          return SGD(
              engine,
              {.lr = 0.02, .weight_decay = 0.3, .rule = {.momentum = 0.7}},
              std::move(groups));
        },
        0.05,
        expected,
        4);
  });
}

TEST(EngineOptimizer, GroupsKeepTheirRatioWhenTheRateChanges) {
  auto net = make_net();
  World world(0, 1, 0, nullptr, {});
  Engine engine(world, net, options_of(SgdOptions{}));
  const at::Tensor bias = net->second->bias;
  SGD sgd(engine, {.lr = 0.5}, {{.parameters = {bias}, .lr = 0.25}});
  EXPECT_EQ(sgd.lr(), 0.5);
  EXPECT_EQ(sgd.param_groups().size(), 1U);
  sgd.set_lr(0.1);
  const auto values = [&] {
    std::map<std::string, at::Tensor> all;
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          all[name] = value.clone();
        });
    return all;
  };
  const auto before = values();
  engine.backward(net->forward(batch_of(0)).sum());
  const at::Tensor bias_gradient = engine.grad(bias).clone();
  const at::Tensor gradient = engine.grad(net->second->weight).clone();
  sgd.step();
  const auto after = values();
  EXPECT_TRUE((before.at("second.bias") - after.at("second.bias"))
                  .allclose(0.05 * bias_gradient, 0, 1e-14));
  EXPECT_TRUE((before.at("second.weight") - after.at("second.weight"))
                  .allclose(0.1 * gradient, 0, 1e-14));
}

TEST(EngineOptimizer, SaysWhatItCannotBe) {
  auto net = make_net();
  net->second->bias.set_requires_grad(false);
  World world(0, 1, 0, nullptr, {});
  Engine engine(world, net, options_of(SgdOptions{}));
  expect_error([&] { AdamW adamw(engine); }, {"SGD", "AdamW", "wrap()"});
  expect_error(
      [&] { SGD sgd(engine, {.rule = {.momentum = 0.5}}); },
      {"1 state tensors", "0", "momentum"});
  expect_error(
      [&] { SGD sgd(engine, {.weight_decay = -1}); }, {"weight_decay", "-1"});
  expect_error([&] { SGD sgd(engine, {.lr = -1}); }, {"-1", "learning rate"});
  expect_error(
      [&] { SGD sgd(engine, {}, {{.parameters = {net->second->bias}}}); },
      {"[4]", "not trained"});
  const at::Tensor weight = net->first->weight;
  expect_error(
      [&] {
        SGD sgd(
            engine, {}, {{.parameters = {weight}}, {.parameters = {weight}}});
      },
      {"'first.weight' is in groups 0 and 1"});
  expect_error(
      [&] {
        SGD sgd(engine, {}, {{.parameters = {weight, weight}}});
      },
      {"'first.weight' is twice in group 0"});
  Engine other(world, make_net(), options_of(LambOptions{}));
  expect_error(
      [&] { EngineOptimizer lamb(other, UpdateRule(LambOptions{}), 0.1, {}); },
      {"LAMB"});
  Engine users(
      world, make_net(), options_of(UserOptimizerOptions{[](auto groups) {
        return std::make_unique<torch::optim::SGD>(
            std::move(groups), torch::optim::SGDOptions(0.1));
      }}));
  expect_error(
      [&] { EngineOptimizer local(users, std::nullopt, 0.1, 0.5); },
      {"weight_decay is 0.5", "UserOptimizerOptions::make"});
  EngineOptimizer lamb(other, std::nullopt, 0.1, 0.0);
  EXPECT_EQ(lamb.lr(), 0.1);
}

TEST(EngineOptimizer, NamesAMakeThatDoesNotTakeItsGroups) {
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Made = std::unique_ptr<torch::optim::Optimizer>;
  World world(0, 1, 0, nullptr, {});
  const auto expect_refused = [&](const std::function<Made(Net&, Groups)>& make,
                                  const char* part) {
    auto net = make_net();
    expect_error(
        [&] {
          Engine engine(
              world, net, options_of(UserOptimizerOptions{[&](Groups groups) {
                return make(*net, std::move(groups));
              }}));
        },
        {"UserOptimizerOptions: `make` returned", part, "std::move(groups)"});
  };
  const auto sgd = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.1));
  };
  expect_refused(
      [&](Net& net, const Groups&) { return sgd(net.parameters()); },
      "model->parameters(), which the engine has sharded");
  expect_refused(
      [&](Net&, Groups groups) {
        return sgd(std::vector{groups[0].params()[0]});
      },
      "over 1 of the 6 tensors of a group: the others would not be trained");
  expect_refused([](Net&, const Groups&) { return nullptr; }, "no optimizer");
  expect_refused(
      [&](Net&, Groups groups) {
        groups.push_back(groups[0]);
        return Made(sgd(std::move(groups)));
      },
      "2 parameter groups, and was given 1");
}

// Another rank may have no part of the parameters, and see nothing wrong.
TEST(EngineOptimizer, AMakeThatFailsOnOneRankIsAnErrorOnAll) {
  tests::run_ranks(2, [](World& world) {
    const auto wrapped = [&] {
      Engine engine(
          world, make_net(), options_of(UserOptimizerOptions{[&](auto groups) {
            using Made = std::unique_ptr<torch::optim::Optimizer>;
            return world.rank() == 0
                       ? Made()
                       : Made(std::make_unique<torch::optim::SGD>(
                             std::move(groups), torch::optim::SGDOptions(0.1)));
          }}));
    };
    if (world.rank() == 0) {
      expect_error(wrapped, {"`make` returned no optimizer"});
    } else {
      expect_error(
          wrapped, {"UserOptimizerOptions::make failed on 1 other rank"});
    }
  });
}

} // namespace tessera::engine::engine_optimizer_test

// SPDX-License-Identifier: Apache-2.0
// Modules that change after wrap(), and engines that move.
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::tests::changed_module_test {

namespace {

using Sequential = torch::nn::Sequential;
using torch::nn::Linear;

Sequential make_layers() {
  torch::manual_seed(3);
  Sequential net(Linear(kWidth, 5), torch::nn::ReLU(), Linear(5, kWidth));
  net->to(torch::kDouble);
  return net;
}

void backward(Engine& engine, Sequential& net) {
  engine.backward(net->forward(batch_of(1, world().rank())).square().mean());
}

/// Expects that nothing that trains or saves the net takes it after `change`.
template <typename Change>
void expect_refused(
    const Change& change,
    std::initializer_list<const char*> parts) {
  Sequential net = make_layers();
  auto engine = wrap(net, group_per_layer());
  backward(engine, net);
  engine.step();
  const auto loss = net->forward(batch_of(2, world().rank())).square().mean();
  change(net);
  expect_throws([&] { engine.backward(loss); }, parts);
  expect_throws([&] { engine.save("never"); }, parts);
  expect_throws([&] { engine.save_weights("never"); }, parts);
  expect_throws(
      [&] {
        engine.for_each_parameter(
            [](const std::string& /*name*/, const at::Tensor& /*value*/) {});
      },
      parts);
  loss.backward();
  expect_throws([&] { engine.step(); }, parts);
}

} // namespace

class ChangedModule : public ::testing::TestWithParam<int> {};

TEST_P(ChangedModule, AnAddedParameterIsFound) {
  run_ranks(GetParam(), [](World&) {
    expect_refused(
        [](Sequential& net) { net->push_back(Linear(kWidth, 2)); },
        {"'3.weight' was added after wrap()", "unwrap()"});
    expect_refused(
        [](Sequential& net) {
          net[2]->register_parameter("extra", torch::ones(3));
        },
        {"'2.extra' was added after wrap()"});
  });
}

TEST_P(ChangedModule, AReplacedModuleIsFound) {
  run_ranks(GetParam(), [](World&) {
    expect_refused(
        [](Sequential& net) {
          // Of the same shape, where the old one may have been in memory.
          net->replace_module("2", Linear(5, kWidth).ptr());
        },
        {"'2.weight' was replaced after wrap()"});
  });
}

TEST_P(ChangedModule, ARemovedParameterIsFound) {
  run_ranks(GetParam(), [](World&) {
    expect_refused(
        [](Sequential& net) { net->unregister_module("2"); },
        {"'2.weight' was removed after wrap()"});
  });
}

TEST_P(ChangedModule, WhatItWasIsTakenAgain) {
  run_ranks(GetParam(), [](World&) {
    Sequential net = make_layers();
    auto engine = wrap(net, group_per_layer());
    const auto last = net[2];
    net->replace_module("2", Linear(5, kWidth).ptr());
    expect_throws([&] { engine.save_weights("never"); }, {"was replaced"});
    net->replace_module("2", last);
    backward(engine, net);
    engine.step();
  });
}

// They are trained as before.
TEST_P(ChangedModule, ChangesWithoutNewParametersAreAllowed) {
  run_ranks(GetParam(), [](World&) {
    Sequential net = make_layers();
    auto engine = wrap(net, group_per_layer());
    backward(engine, net);
    engine.step();
    net->register_module("tanh", torch::nn::Tanh());
    net->register_module("alias", net[0]);
    backward(engine, net);
    engine.step();
    net->unregister_module("tanh");
    net->unregister_module("alias");
    backward(engine, net);
    engine.step();
  });
}

TEST_P(ChangedModule, IgnoredParametersMayChange) {
  run_ranks(GetParam(), [](World&) {
    Sequential net = make_layers();
    EngineOptions options = group_per_layer();
    ModuleRule rule;
    rule.path = "0|apart.*";
    rule.options.ignored = true;
    options.sharding.modules = {rule};
    auto engine = wrap(net, options);
    backward(engine, net);
    engine.step();
    net->replace_module("0", Linear(kWidth, 5).ptr());
    net->register_module("apart", Linear(2, 2));
    const auto loss = net[2]
                          ->as<Linear>()
                          ->forward(torch::ones({2, 5}, torch::kDouble))
                          .square()
                          .mean();
    engine.backward(loss);
    engine.step();
  });
}

TEST_P(ChangedModule, AMovedEngineSaysSo) {
  run_ranks(GetParam(), [](World&) {
    Sequential net = make_layers();
    auto engine = wrap(net, group_per_layer());
    Engine other = std::move(engine);
    // NOLINTBEGIN(bugprone-use-after-move)
    const std::initializer_list<const char*> parts{"was moved"};
    expect_throws([&] { backward(engine, net); }, parts);
    expect_throws([&] { engine.step(); }, parts);
    expect_throws([&] { engine.save("x"); }, parts);
    expect_throws([&] { (void)engine.learning_rate(); }, parts);
    expect_throws([&] { (void)engine.device(); }, parts);
    // NOLINTEND(bugprone-use-after-move)
    backward(other, net);
    EXPECT_TRUE(other.step());
  });
}

TEST(EngineScopes, MayOutliveTheEngine) {
  run_ranks(1, [](World&) {
    auto net = make_layers();
    EngineOptions options = group_per_layer();
    options.optimizer.ema_decay = 0.5;
    std::optional<GatherScope> gathered;
    std::optional<EmaScope> averaged;
    {
      auto engine = wrap(net, options);
      auto moved = std::move(engine);
      backward(moved, net);
      moved.step();
      averaged.emplace(moved.ema());
      gathered.emplace(moved.gather());
    }
    gathered.reset();
    averaged.reset();
  });
}

TEST(EngineScopes, ANullCheckpointableIsAnError) {
  run_ranks(1, [](World&) {
    auto net = make_layers();
    auto engine = wrap(net, group_per_layer());
    expect_throws([&] { engine.save("never", {nullptr}); }, {"a null pointer"});
    expect_throws([&] { engine.load("never", {nullptr}); }, {"a null pointer"});
  });
}

// As many tie an embedding and a head in LibTorch.
TEST(AssignedWeight, IsNamed) {
  run_ranks(1, [](World&) {
    torch::nn::Embedding embedding(8, 4);
    Linear head(torch::nn::LinearOptions(4, 8).bias(false));
    head->weight = embedding->weight;
    Linear other(4, 4);
    const Sequential net(embedding, Linear(4, 4), head, other);
    other->weight = torch::ones({4, 4});
    ::testing::internal::CaptureStderr();
    auto engine = wrap(net);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(
        log.find("'2' computes with '0.weight', which was assigned to its "
                 "`weight`; its registered parameter '2.weight' is another"),
        std::string::npos)
        << log;
    EXPECT_NE(
        log.find("'3' computes with a tensor that is not registered"),
        std::string::npos)
        << log;
    EXPECT_EQ(log.find("'1' computes"), std::string::npos) << log;
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ChangedModule, ::testing::Values(1, 2));

} // namespace tessera::tests::changed_module_test

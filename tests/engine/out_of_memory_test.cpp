// SPDX-License-Identifier: Apache-2.0
// Memory that runs out in a step: a report by purpose, and no rank that hangs.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <new>

namespace tessera::engine::out_of_memory_test {

namespace {

using namespace tests;

/// The identity, until its backward runs out of memory on one rank.
struct Exhausted : torch::autograd::Function<Exhausted> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        !context->saved_data["fails"].toBool(),
        "tried to allocate 20.00 GiB");
    return {gradients[0], {}};
  }
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(64, 512), torch::nn::Linear(512, 3));
}

EngineOptions quiet() {
  EngineOptions options;
  options.log_memory = false;
  return options;
}

} // namespace

TEST(OutOfMemory, IsReportedWithTheMemoryByPurpose) {
  run_ranks(1, [](World&) {
    auto net = make_net();
    auto engine = wrap(net, quiet());
    const auto x = torch::randn({2, 64});
    expect_error(
        [&] {
          engine.backward(
              Exhausted::apply(net->forward(x), true).square().mean());
        },
        {"Engine::backward ran out of memory",
         "tried to allocate 20.00 GiB",
         "rank 0",
         "parameters",
         "0.13 MiB",
         "optimizer state"});
    // Alone, it goes on from there.
    net->zero_grad();
    engine.backward(Exhausted::apply(net->forward(x), false).square().mean());
    EXPECT_TRUE(engine.step());
  });
}

TEST(OutOfMemory, OfTheCpusAllocatorIsReportedToo) {
  run_ranks(1, [](World&) {
    auto net = make_net();
    auto engine = wrap(net, quiet());
    auto loss = net->forward(torch::randn({2, 64})).square().mean();
    loss.register_hook([](const at::Tensor& gradient) {
      return gradient + torch::empty({int64_t{1} << 50}).sum();
    });
    expect_error(
        [&] { engine.backward(loss); },
        {"Engine::backward ran out of memory",
         "can't allocate memory",
         "optimizer state"});
  });
}

TEST(OutOfMemory, OfOneRankEndsTheOthers) {
  run_ranks(2, [](World& world) {
    auto net = make_net();
    auto engine = wrap(net, quiet());
    const bool fails = world.rank() == 1;
    const auto backward = [&] {
      const auto x = torch::randn({2, 64});
      engine.backward(Exhausted::apply(net->forward(x), fails).square().mean());
    };
    if (fails) {
      expect_error(backward, {"ran out of memory", "rank 1"});
      // It stays, so that only its report can end the other one's wait.
      world.store()->get("rank 0 knows");
      return;
    }
    expect_error(
        backward, {"rank 1 has failed", "tried to allocate 20.00 GiB"});
    world.store()->set("rank 0 knows", std::vector<uint8_t>{1});
  });
}

TEST(OutOfMemory, OfTheHostOnOneRankEndsTheOthers) {
  run_ranks(2, [](World& world) {
    auto net = make_net();
    auto engine = wrap(net, quiet());
    const bool fails = world.rank() == 1;
    const auto backward = [&] {
      auto loss = net->forward(torch::randn({2, 64})).square().mean();
      loss.register_hook([fails](const at::Tensor& gradient) {
        if (fails) {
          throw std::bad_alloc();
        }
        return gradient;
      });
      engine.backward(loss);
    };
    if (fails) {
      expect_error(backward, {"ran out of memory: std::bad_alloc", "rank 1"});
      world.store()->get("rank 0 knows");
      return;
    }
    expect_error(backward, {"rank 1 has failed", "std::bad_alloc"});
    world.store()->set("rank 0 knows", std::vector<uint8_t>{1});
  });
}

} // namespace tessera::engine::out_of_memory_test

// SPDX-License-Identifier: Apache-2.0
// The ways in which people reset, read and use gradients.
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::tests::gradient_token_loops_test {

namespace {

using Reset = std::function<void(torch::nn::Module&)>;

void reset_per_parameter(torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
}

void zero_by_module(torch::nn::Module& net) {
  net.zero_grad(/*set_to_none=*/false);
}

void zero_per_parameter(torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) {
    if (parameter.grad().defined()) {
      parameter.mutable_grad().zero_();
    }
  }
}

void zero_by_fill(torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) {
    if (parameter.grad().defined()) {
      parameter.mutable_grad().detach().zero_();
    }
  }
}

/// Throws away what a first backward has left, then trains on: the result is
/// that of the second backward only.
void expect_reset_works(int world_size, const Reset& reset) {
  run_ranks(world_size, [&](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 5; ++step) {
      if (step != 2) {
        twin.plain_backward(100 + step, mean_square);
        twin.wrapped_backward(100 + step, mean_square);
        reset(*twin.plain);
        reset(*twin.wrapped);
      }
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      twin.expect_same_gradients("in step " + std::to_string(step));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

struct Gan : torch::nn::Module {
  Gan()
      : generator(register_module("generator", Stack(2))),
        discriminator(register_module("discriminator", Stack(1))),
        widen(register_module("widen", torch::nn::Linear(2, kWidth))) {}
  at::Tensor fake(const at::Tensor& noise) {
    return widen(generator(noise));
  }
  Stack generator;
  Stack discriminator;
  torch::nn::Linear widen;
};

} // namespace

class GradientTokenLoops : public ::testing::TestWithParam<int> {};

TEST_P(GradientTokenLoops, ZeroGradOfTheModule) {
  expect_reset_works(
      GetParam(), [](torch::nn::Module& net) { net.zero_grad(); });
}

TEST_P(GradientTokenLoops, UndefinedPerParameter) {
  expect_reset_works(GetParam(), reset_per_parameter);
}

TEST_P(GradientTokenLoops, ZeroGradOfTheModuleToZeros) {
  expect_reset_works(GetParam(), zero_by_module);
}

TEST_P(GradientTokenLoops, ZeroPerParameter) {
  expect_reset_works(GetParam(), zero_per_parameter);
}

TEST_P(GradientTokenLoops, ZeroOfADetachedGradient) {
  expect_reset_works(GetParam(), zero_by_fill);
}

TEST_P(GradientTokenLoops, ZeroGradOfOnePart) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 4; ++step) {
      twin.plain_backward(100 + step, mean_square);
      twin.wrapped_backward(100 + step, mean_square);
      for (auto* net : {twin.plain.get(), twin.wrapped.get()}) {
        net->blocks[1]->zero_grad();
        net->last->bias.mutable_grad() = at::Tensor();
        net->first->zero_grad(/*set_to_none=*/false);
      }
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      twin.expect_same_gradients("in step " + std::to_string(step));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTokenLoops, DiscriminatorThatTheGeneratorsLossRunsThrough) {
  run_ranks(GetParam(), [](World& world) {
    auto plain = make_net<Gan>();
    auto net = make_net<Gan>();
    torch::optim::AdamW plain_d(
        plain->discriminator->parameters(), torch::optim::AdamWOptions(1e-2));
    std::vector<at::Tensor> generator = plain->generator->parameters();
    for (const auto& parameter : plain->widen->parameters()) {
      generator.push_back(parameter);
    }
    torch::optim::AdamW plain_g(generator, torch::optim::AdamWOptions(1e-2));

    // As people write it: an engine for each network.
    auto engine_d = wrap(net->discriminator, group_per_layer());
    struct Generator : torch::nn::Module {
      explicit Generator(Gan& gan) {
        register_module("generator", gan.generator);
        register_module("widen", gan.widen);
      }
    };
    auto engine_g = wrap(
        std::static_pointer_cast<torch::nn::Module>(
            std::make_shared<Generator>(*net)),
        group_per_layer());

    const int size = world.size();
    const auto real_loss = [](Gan& gan, const at::Tensor& x) {
      return torch::softplus(-gan.discriminator(x)).mean();
    };
    const auto fake_loss = [](Gan& gan, const at::Tensor& x) {
      return torch::softplus(gan.discriminator(gan.fake(x).detach())).mean();
    };
    const auto generator_loss = [](Gan& gan, const at::Tensor& x) {
      return torch::softplus(-gan.discriminator(gan.fake(x))).mean();
    };
    for (int step = 0; step < 5; ++step) {
      plain_d.zero_grad();
      net->discriminator->zero_grad();
      for (int r = 0; r < size; ++r) {
        (real_loss(*plain, batch_of(step, r)) / size).backward();
        (fake_loss(*plain, batch_of(50 + step, r)) / size).backward();
      }
      real_loss(*net, batch_of(step, world.rank())).backward();
      fake_loss(*net, batch_of(50 + step, world.rank())).backward();
      plain_d.step();
      engine_d.step();

      plain_g.zero_grad();
      net->generator->zero_grad();
      for (int r = 0; r < size; ++r) {
        (generator_loss(*plain, batch_of(90 + step, r)) / size).backward();
      }
      generator_loss(*net, batch_of(90 + step, world.rank())).backward();
      plain_g.step();
      engine_g.step();
    }
    const auto expected = plain->named_parameters();
    const auto compare = [&](const std::string& prefix) {
      return [&, prefix](const std::string& name, const at::Tensor& value) {
        EXPECT_TRUE(
            torch::allclose(value, expected[prefix + name], 1e-9, 1e-11))
            << prefix << name;
      };
    };
    engine_d.for_each_parameter(compare("discriminator."));
    engine_g.for_each_parameter(compare(""));
  });
}

TEST_P(GradientTokenLoops, ArithmeticOnATokenIsAnError) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    twin.plain_backward(0, mean_square);
    twin.wrapped_backward(0, mean_square);
    auto& weight = twin.wrapped->last->weight;
    const std::initializer_list<const char*> parts{
        "gradient of 'last.weight'", "engine."};
    expect_throws([&] { weight.mutable_grad().mul_(0.5); }, parts);
    expect_throws([&] { (void)weight.grad().norm(); }, parts);
    expect_throws([&] { (void)(weight.grad() + 1.0); }, parts);
    expect_throws([&] { (void)(weight.grad() + weight.detach()); }, parts);
    expect_throws(
        [&] { (void)weight.grad().add(weight.detach(), 0.1); }, parts);
    expect_throws([&] { (void)weight.grad().data_ptr(); }, parts);
    expect_throws([&] { (void)weight.grad().clone(); }, parts);
    twin.expect_same_gradients();
    // L2 decay by hand, with a factor.
    const auto scope = twin.engine.gather(std::vector<at::Tensor>{weight});
    weight.mutable_grad().add_(weight.detach(), 0.1);
    auto& plain_weight = twin.plain->last->weight;
    plain_weight.mutable_grad().add_(plain_weight.detach(), 0.1);
    twin.expect_same_gradients("after add_ with a factor");
  });
}

TEST_P(GradientTokenLoops, OptimizersOfLibTorchAreRefused) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    torch::optim::AdamW adamw(
        twin.wrapped->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::SGD sgd(
        twin.wrapped->parameters(), torch::optim::SGDOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      const std::initializer_list<const char*> parts{
          "'first.weight'", "an optimizer of torch", "engine.step()"};
      expect_throws([&] { adamw.step(); }, parts);
      expect_throws([&] { sgd.step(); }, parts);
      expect_throws(
          [&] {
            torch::nn::utils::clip_grad_norm_(twin.wrapped->parameters(), 1.0);
          },
          {"gradient of 'first.weight'", "clip_grad_norm()"});
      expect_throws(
          [&] {
            torch::nn::utils::clip_grad_value_(twin.wrapped->parameters(), 1.0);
          },
          {"gradient of 'first.weight'"});
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTokenLoops, RegisteredParameterThatNeverGetsAGradient) {
  // `last` stays registered but the forward uses another weight: no count of
  // hooks is ever complete, so the end of backward has to flush.
  struct Tied : torch::nn::Module {
    Tied()
        : embed(register_module("embed", torch::nn::Linear(kWidth, kWidth))),
          head(register_module("head", torch::nn::Linear(kWidth, kWidth))) {
      head->weight = embed->weight;
    }
    at::Tensor forward(const at::Tensor& x) {
      return head(torch::tanh(embed(x)));
    }
    torch::nn::Linear embed;
    torch::nn::Linear head;
  };
  run_ranks(GetParam(), [](World&) {
    const auto make = [] {
      auto net = make_net<Tied>();
      // Module::to has given the registered one a storage of its own.
      net->head->weight = net->embed->weight;
      return net;
    };
    Twin<Tied> twin(make(), make());
    for (int step = 0; step < 4; ++step) {
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GradientTokenLoops, ::testing::Range(1, 4));

} // namespace tessera::tests::gradient_token_loops_test

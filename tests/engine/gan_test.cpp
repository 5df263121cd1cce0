// SPDX-License-Identifier: Apache-2.0
// Two networks in one loop, each in an engine of its own, beside the same loop
// with torch::optim::AdamW.
#include "engine/parity.h"
#include "engine/stranger_models.h"
#include "support/ranks.h"

#include <utility>

namespace tessera::engine::gan_test {

namespace {

using namespace tests;

/// One network and how its owner trains it.
struct Player {
  torch::nn::Sequential net;
  std::function<void(const torch::Tensor&)> backward;
  std::function<void()> step;
};

struct Losses {
  torch::Tensor discriminator;
  torch::Tensor generator;
};

using Loop = std::function<Losses(Player& generator, Player& discriminator)>;

torch::Tensor logits_loss(const torch::Tensor& logits, double target) {
  return torch::binary_cross_entropy_with_logits(
      logits, torch::full_like(logits, target));
}

/// The discriminator is called three times; the generator's backward reaches
/// it too and leaves gradients that the next zero_grad() must throw away.
Losses plain_gan(Player& generator, Player& discriminator) {
  const auto real = torch::randn({6, 7}) + 1;
  const auto noise = torch::randn({6, 4});
  discriminator.net->zero_grad();
  auto loss_real = logits_loss(discriminator.net->forward(real), 1);
  discriminator.backward(loss_real);
  auto fake = generator.net->forward(noise);
  auto loss_fake = logits_loss(discriminator.net->forward(fake.detach()), 0);
  discriminator.backward(loss_fake);
  discriminator.step();
  generator.net->zero_grad();
  auto loss = logits_loss(discriminator.net->forward(fake), 1);
  generator.backward(loss);
  generator.step();
  return {(loss_real + loss_fake).detach(), loss.detach()};
}

/// A critic whose gradient by its input is held near one: double backward.
Losses gradient_penalty_gan(Player& generator, Player& discriminator) {
  const auto real = torch::randn({6, 7}) + 1;
  const auto noise = torch::randn({6, 4});
  torch::Tensor loss_critic;
  for (int i = 0; i < 2; ++i) {
    discriminator.net->zero_grad();
    const auto fake = generator.net->forward(noise).detach();
    auto mixed = real.lerp(fake, torch::rand({6, 1}));
    mixed.requires_grad_();
    const auto score = discriminator.net->forward(mixed);
    const auto slope = torch::autograd::grad(
        {score},
        {mixed},
        {torch::ones_like(score)},
        /*retain_graph=*/true,
        /*create_graph=*/true)[0];
    const auto penalty = (slope.norm(2, 1) - 1).square().mean();
    loss_critic = discriminator.net->forward(fake).mean() -
                  discriminator.net->forward(real).mean() + 10 * penalty;
    discriminator.backward(loss_critic);
    discriminator.step();
  }
  generator.net->zero_grad();
  auto loss = -discriminator.net->forward(generator.net->forward(noise)).mean();
  generator.backward(loss);
  generator.step();
  return {loss_critic.detach(), loss.detach()};
}

/// As plain_gan(), but the discriminator is frozen while the generator learns.
Losses freezing_gan(Player& generator, Player& discriminator) {
  const auto real = torch::randn({6, 7}) + 1;
  const auto noise = torch::randn({6, 4});
  const auto freeze = [&](bool frozen) {
    for (auto& parameter : discriminator.net->parameters()) {
      parameter.set_requires_grad(!frozen);
    }
  };
  discriminator.net->zero_grad();
  auto fake = generator.net->forward(noise);
  auto loss_d = logits_loss(discriminator.net->forward(real), 1) +
                logits_loss(discriminator.net->forward(fake.detach()), 0);
  discriminator.backward(loss_d);
  discriminator.step();
  freeze(true);
  generator.net->zero_grad();
  auto loss = logits_loss(discriminator.net->forward(fake), 1);
  generator.backward(loss);
  generator.step();
  freeze(false);
  return {loss_d.detach(), loss.detach()};
}

/// As it trains on each of `ranks` ranks that all see the same.
Player plain_player(torch::nn::Sequential net, PlainAdamW& adamw, int ranks) {
  return {
      net,
      [net, ranks](const torch::Tensor& loss) {
        std::vector<at::Tensor> before;
        for (const at::Tensor& parameter : net->parameters()) {
          before.push_back(std::exchange(parameter.mutable_grad(), {}));
        }
        loss.backward();
        for (size_t i = 0; i < before.size(); ++i) {
          at::Tensor& gradient = net->parameters()[i].mutable_grad();
          gradient =
              average_over_ranks(std::vector<at::Tensor>(ranks, gradient));
          if (before[i].defined()) {
            gradient =
                gradient.defined() ? before[i].add_(gradient) : before[i];
          }
        }
      },
      [&adamw] { adamw.step(); }};
}

Player wrapped_player(torch::nn::Sequential net, Engine& engine) {
  return {
      std::move(net),
      [&engine](const torch::Tensor& loss) { engine.backward(loss); },
      [&engine] { engine.step(); }};
}

void expect_gan_parity(
    const World& world,
    const Loop& loop,
    int64_t min_group_numel,
    bool update_in_backward = false) {
  auto options = parity_options(world, min_group_numel);
  options.engine.optimizer = adamw_options(options);
  options.engine.update_in_backward = update_in_backward;
  torch::manual_seed(3);
  auto plain_g = strangers::make_generator();
  auto plain_d = strangers::make_discriminator();
  torch::manual_seed(3);
  auto wrapped_g = strangers::make_generator();
  auto wrapped_d = strangers::make_discriminator();
  auto adamw_g = plain_adamw(*plain_g, options);
  auto adamw_d = plain_adamw(*plain_d, options);
  const Weights start_g = weights_of(*plain_g);
  const Weights start_d = weights_of(*plain_d);
  auto engine_g = wrap(wrapped_g, options.engine);
  auto engine_d = wrap(wrapped_d, options.engine);
  Player plain_generator = plain_player(plain_g, adamw_g, world.size());
  Player plain_discriminator = plain_player(plain_d, adamw_d, world.size());
  Player generator = wrapped_player(wrapped_g, engine_g);
  Player discriminator = wrapped_player(wrapped_d, engine_d);
  for (int step = 0; step < 10; ++step) {
    torch::manual_seed(50 + step);
    const Losses expected = loop(plain_generator, plain_discriminator);
    torch::manual_seed(50 + step);
    const Losses losses = loop(generator, discriminator);
    const std::string now = "step " + std::to_string(step);
    expect_same(
        losses.discriminator,
        expected.discriminator,
        options.tolerance,
        1,
        now + ", discriminator");
    expect_same(
        losses.generator,
        expected.generator,
        options.tolerance,
        1,
        now + ", generator");
  }
  expect_same_parameters(engine_d, *plain_d, start_d, options.tolerance, "D");
  expect_same_parameters(engine_g, *plain_g, start_g, options.tolerance, "G");
  expect_same_after_unwrap(
      engine_d,
      *wrapped_d,
      *plain_d,
      *plain_d,
      start_d,
      options.tolerance,
      "D");
  expect_same_after_unwrap(
      engine_g,
      *wrapped_g,
      *plain_g,
      *plain_g,
      start_g,
      options.tolerance,
      "G");
}

} // namespace

class GanTest : public ::testing::TestWithParam<int> {
 protected:
  static void run(const Loop& loop) {
    run_ranks(GetParam(), [&](World& world) {
      expect_gan_parity(world, loop, 0);
      expect_gan_parity(world, loop, 100'000);
    });
  }
};

TEST_P(GanTest, DiscriminatorCalledThreeTimes) {
  run(plain_gan);
}

TEST_P(GanTest, GradientPenaltyByDoubleBackward) {
  run(gradient_penalty_gan);
}

TEST_P(GanTest, DiscriminatorFrozenForTheGeneratorsTurn) {
  run(freezing_gan);
}

// The generator's backward must not update the discriminator, whose next
// zero_grad() drops what it leaves there.
TEST_P(GanTest, EachIsUpdatedInItsOwnBackward) {
  run_ranks(GetParam(), [](World& world) {
    for (const Loop& loop : {Loop(plain_gan), Loop(gradient_penalty_gan)}) {
      expect_gan_parity(world, loop, 0, /*update_in_backward=*/true);
    }
  });
}

TEST_P(GanTest, OneOperatorOverParametersOfTwoEngines) {
  run_ranks(GetParam(), [](World& world) {
    const auto options = parity_options(world, 0);
    std::vector<torch::nn::Sequential> nets;
    std::vector<Engine> engines;
    for (int i = 0; i < 2; ++i) {
      torch::manual_seed(5);
      nets.push_back(strangers::make_discriminator());
      engines.push_back(wrap(nets.back(), options.engine));
    }
    torch::manual_seed(5);
    const auto expected = strangers::make_discriminator();
    // Biases of three groups of each engine, more than its slots hold at once
    // unless all are held for the operator.
    std::vector<torch::Tensor> mixed;
    std::vector<torch::Tensor> wanted;
    for (size_t p = 1; p < expected->parameters().size(); p += 2) {
      for (const auto& net : nets) {
        mixed.push_back(net->parameters()[p]);
        wanted.push_back(expected->parameters()[p]);
      }
    }
    EXPECT_TRUE(torch::equal(torch::cat(mixed), torch::cat(wanted)));
  });
}

TEST_P(GanTest, FrozenWhileUnwrappedIsOutOfTheEnginesHands) {
  run_ranks(GetParam(), [](World& world) {
    auto net = strangers::make_discriminator();
    {
      auto engine = wrap(net, parity_options(world, 0).engine);
      for (auto& parameter : net->parameters()) {
        parameter.set_requires_grad(false);
      }
      engine.unwrap();
    }
    for (auto& parameter : net->parameters()) {
      parameter.set_requires_grad(true);
    }
    net->forward(torch::ones({2, 7})).sum().backward();
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.grad().defined());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GanTest, ::testing::Range(1, 5));

} // namespace tessera::engine::gan_test

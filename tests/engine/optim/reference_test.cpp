// SPDX-License-Identifier: Apache-2.0
// Every optimizer over shards against itself in float64 on whole parameters.
// Both sides compute in float64 (see [Note: float64 twins]).
#include "engine/optim/reference_optimizers.h"

#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/engine/optim/optimizer_rules.h"

namespace tessera::engine::reference_test {

namespace {

using namespace tests;

/// Odd sizes, tensors of one to four dimensions, one transposed in memory, one
/// frozen, one used by even steps only, one never.
struct ZooImpl : torch::nn::Module {
  ZooImpl() {
    emb = register_parameter("emb", torch::randn({11, 5}));
    up = register_parameter("up", torch::randn({5, 9}));
    turned = register_parameter("turned", torch::randn({7, 9}).t());
    frozen = register_parameter("frozen", torch::randn({7, 7}), false);
    cube = register_parameter("cube", torch::randn({2, 3, 7, 3}));
    sometimes = register_parameter("sometimes", torch::randn({3, 3}));
    never = register_parameter("never", torch::randn({4, 4}));
    bias = register_parameter("bias", torch::randn({3}));
    scale = register_parameter("scale", torch::randn({}));
  }
  at::Tensor loss(const at::Tensor& x, bool use_sometimes) {
    at::Tensor y = torch::tanh(x.mm(emb).mm(up)).mm(turned).mm(frozen);
    y = torch::tanh(y).mm(cube.sum(0).sum(0));
    if (use_sometimes) {
      y = y + y.mm(sometimes);
    }
    return (torch::tanh(y + bias) * scale).square().mean();
  }
  at::Tensor emb, up, turned, frozen, cube, sometimes, never, bias, scale;
};
TORCH_MODULE(Zoo);

struct Reference {
  ReferenceUpdate update;
  double lr = 0.02;
};

/// Of the gradients of odd steps.
struct Clip {
  std::optional<double> max_norm;
};

/// Trains both for `steps` steps, every rank on a batch of its own, and
/// compares all parameters. @param reference_of by name and parameter.
void expect_matches_reference(
    World& world,
    const OptimizerOptions& optimizer,
    const std::function<Reference(const std::string&, const at::Tensor&)>&
        reference_of,
    const Clip& clip = {}) {
  for (const int64_t min_group_numel : {0, 100'000}) {
    auto plain = make_net<ZooImpl>();
    auto wrapped = make_net<ZooImpl>();
    auto options = group_per_layer();
    options.optimizer = optimizer;
    options.sharding.groups.min_group_numel = min_group_numel;
    // Two copies of two parts.
    options.sharding.shard_ranks = world.size() == 4 ? 2 : 0;
    auto engine = wrap(std::shared_ptr<torch::nn::Module>(wrapped), options);
    std::map<std::string, ReferenceState> states;
    const auto batch = [](int step, int rank) {
      torch::manual_seed(100 * step + rank);
      return torch::randn({4, 11}, torch::kDouble);
    };
    for (int step = 0; step < 6; ++step) {
      plain->zero_grad();
      for (int r = 0; r < world.size(); ++r) {
        (plain->loss(batch(step, r), step % 2 == 0) / world.size()).backward();
      }
      const bool clips = clip.max_norm && step % 2 == 1;
      if (clips) {
        const double norm = torch::nn::utils::clip_grad_norm_(
            plain->parameters(), *clip.max_norm);
        EXPECT_GT(norm, *clip.max_norm);
      }
      {
        const torch::NoGradGuard no_grad;
        for (auto& item : plain->named_parameters()) {
          if (item.value().grad().defined()) {
            auto& state = states[item.key()];
            ++state.steps;
            const Reference reference = reference_of(item.key(), item.value());
            reference.update(
                item.value(), item.value().grad(), state, reference.lr);
          }
        }
      }
      engine.backward(wrapped->loss(batch(step, world.rank()), step % 2 == 0));
      if (clips) {
        engine.clip_grad_norm(*clip.max_norm);
      }
      engine.step();
    }
    const auto expected = plain->named_parameters();
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          EXPECT_TRUE(torch::allclose(value, expected[name], 1e-9, 1e-11))
              << name_of(optimizer.rule) << ", " << name << ": off by "
              << (value - expected[name]).abs().max().item<double>();
        });
  }
}

OptimizerOptions options_of(UpdateRule rule, double weight_decay) {
  OptimizerOptions options;
  options.lr = 0.02;
  options.weight_decay = weight_decay;
  options.rule = std::move(rule);
  return options;
}

} // namespace

class OptimizerReference : public ::testing::TestWithParam<int> {
 protected:
  void expect(const OptimizerOptions& options, const ReferenceUpdate& update) {
    run_ranks(GetParam(), [&](World& world) {
      expect_matches_reference(
          world, options, [&](const std::string&, const at::Tensor&) {
            return Reference{update};
          });
    });
  }
};

TEST_P(OptimizerReference, AdamW) {
  expect(options_of(AdamWOptions{}, 0.1), reference_adam(0.1, true));
}

TEST_P(OptimizerReference, Adam) {
  expect(options_of(AdamOptions{}, 0.1), reference_adam(0.1, false));
}

TEST_P(OptimizerReference, Sgd) {
  expect(options_of(SgdOptions{.momentum = 0.8}, 0.1), reference_sgd(0.8, 0.1));
}

TEST_P(OptimizerReference, Lion) {
  expect(options_of(LionOptions{}, 0.1), reference_lion(0.1));
}

TEST_P(OptimizerReference, Lamb) {
  expect(options_of(LambOptions{}, 0.1), reference_lamb(0.1));
}

TEST_P(OptimizerReference, Adan) {
  expect(options_of(AdanOptions{}, 0.1), ReferenceAdan{.wd = 0.1});
}

TEST_P(OptimizerReference, AdanWithOptionsOfItsOwnAndWithoutProximalDecay) {
  expect(
      options_of(
          AdanOptions{
              .beta1 = 0.9,
              .beta2 = 0.7,
              .beta3 = 0.95,
              .eps = 1e-3,
              .no_prox = true},
          0.1),
      ReferenceAdan{
          .beta1 = 0.1,
          .beta2 = 0.3,
          .beta3 = 0.05,
          .eps = 1e-3,
          .wd = 0.1,
          .proximal = false});
}

// The difference is that of the gradients that were applied, as in the authors'
// program, which clips before it.
TEST_P(OptimizerReference, AdanAfterClipping) {
  run_ranks(GetParam(), [](World& world) {
    expect_matches_reference(
        world,
        options_of(AdanOptions{}, 0.1),
        [](const std::string&, const at::Tensor&) {
          return Reference{ReferenceAdan{.wd = 0.1}};
        },
        {.max_norm = 1e-3});
  });
}

TEST_P(OptimizerReference, MomentsInBfloat16) {
  const std::pair<UpdateRule, ReferenceUpdate> rules[] = {
      {AdamWOptions{}, reference_adam(0.1, true)},
      {AdamOptions{}, reference_adam(0.1, false)},
      {SgdOptions{.momentum = 0.8}, reference_sgd(0.8, 0.1)},
      {LionOptions{}, reference_lion(0.1)},
      {AdanOptions{}, ReferenceAdan{.wd = 0.1}}};
  for (const auto& [rule, reference] : rules) {
    OptimizerOptions options = options_of(rule, 0.1);
    options.moment_dtype = at::kBFloat16;
    expect(options, keeping_bfloat16(reference));
  }
}

TEST_P(OptimizerReference, Adafactor) {
  expect(options_of(AdafactorOptions{}, 0), reference_adafactor());
}

TEST_P(OptimizerReference, MuonWithAdamWForTheRest) {
  run_ranks(GetParam(), [](World& world) {
    expect_matches_reference(
        world,
        options_of(MuonOptions{}, 0.1),
        [](const std::string& name, const at::Tensor& p) {
          return Reference{
              p.dim() == 2 && name != "emb" ? reference_muon(0.1)
                                            : reference_adam(0.1, true)};
        });
  });
}

TEST_P(OptimizerReference, SeveralOptimizersWithRatesOfTheirOwn) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options = options_of(AdamWOptions{}, 0.1);
    options.parameters = {
        {.pattern = "bias|scale", .weight_decay = 0},
        {.pattern = "up", .lr_scale = 0.5, .rule = LionOptions{}},
        {.pattern = "sometimes", .lr_scale = 0.5, .rule = AdanOptions{}},
        {.pattern = "c.*e", .rule = LambOptions{}},
        {.pattern = "turned", .rule = SgdOptions{.momentum = 0.8}}};
    expect_matches_reference(
        world, options, [](const std::string& name, const at::Tensor&) {
          if (name == "up") {
            return Reference{reference_lion(0.1), 0.01};
          }
          if (name == "sometimes") {
            return Reference{ReferenceAdan{.wd = 0.1}, 0.01};
          }
          if (name == "turned") {
            return Reference{reference_sgd(0.8, 0.1)};
          }
          if (name == "cube") {
            return Reference{reference_lamb(0.1)};
          }
          const bool decays = name != "bias" && name != "scale";
          return Reference{reference_adam(decays ? 0.1 : 0, true)};
        });
  });
}

TEST_P(OptimizerReference, HoldStepsKeepsWeightsWhileMomentsCollect) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options = options_of(AdamWOptions{}, 0.1);
    options.frozen_steps = 3;
    const auto adam = reference_adam(0.1, true);
    expect_matches_reference(
        world, options, [&](const std::string&, const at::Tensor&) {
          return Reference{
              [&](at::Tensor& p,
                  const at::Tensor& g,
                  ReferenceState& state,
                  double lr) { adam(p, g, state, state.steps <= 3 ? 0 : lr); }};
        });
  });
}

TEST_P(OptimizerReference, AUsersOptimizerWorksOnTheRuns) {
  run_ranks(GetParam(), [](World& world) {
    OptimizerOptions options;
    options.lr = 0.02;
    options.parameters = {{.pattern = "up", .lr_scale = 0.5}};
    options.rule = UserOptimizerOptions{[](auto groups) {
      return std::make_unique<torch::optim::Adam>(
          std::move(groups), torch::optim::AdamOptions(123).weight_decay(0.1));
    }};
    expect_matches_reference(
        world, options, [](const std::string& name, const at::Tensor&) {
          return Reference{
              reference_adam(0.1, false), name == "up" ? 0.01 : 0.02};
        });
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, OptimizerReference, ::testing::Range(1, 5));

TEST(OptimizerRules, NameTheNearestParameterAndLeaveTheModuleWhole) {
  run_ranks(1, [](World&) {
    auto net = make_net<StackImpl>();
    auto options = group_per_layer();
    options.optimizer.parameters = {{.pattern = "last.wieght"}};
    expect_throws(
        [&] { wrap(std::shared_ptr<torch::nn::Module>(net), options); },
        {"optimizer.parameters", "last.wieght", "last.weight"});
    options.optimizer.parameters = {{.pattern = "last.("}};
    expect_throws(
        [&] { wrap(std::shared_ptr<torch::nn::Module>(net), options); },
        {"optimizer.parameters", "last.("});
    EXPECT_NE(net->last->weight.data_ptr(), nullptr);
  });
}

TEST(OptimizerRules, MatchTheOtherNamesOfParameters) {
  run_ranks(1, [](World&) {
    auto net = make_net<StackImpl>();
    auto options = group_per_layer();
    options.other_names = {{"last.weight", {"lm_head.weight"}}};
    options.optimizer.parameters = {
        {.pattern = "lm_head\\..*", .lr_scale = 0.5}};
    const OptimizerRules rules(options.optimizer, options.other_names);
    EXPECT_EQ(rules.settings_for({"last.weight"}).lr_scale, 0.5);
    EXPECT_EQ(rules.settings_for({"last.bias"}).lr_scale, 1);
    rules.check_all_used(*net);
    EXPECT_EQ(
        rules.settings_for({"last.weight"}).names,
        (std::vector<std::string>{"last.weight", "lm_head.weight"}));
    options.optimizer.parameters[0].pattern = "lm_haed.weight";
    expect_throws(
        [&] { wrap(std::shared_ptr<torch::nn::Module>(net), options); },
        {"optimizer.parameters", "lm_haed.weight", "'lm_head.weight'"});
  });
}

// A matrix that only its checkpoint calls an embedding or a head.
TEST(OptimizerRules, MuonKnowsTheOtherNamesOfParameters) {
  run_ranks(1, [](World& world) {
    const auto moved = [&](bool has_other_name) {
      auto net = make_net<StackImpl>();
      auto options = group_per_layer();
      options.optimizer.rule = MuonOptions{};
      if (has_other_name) {
        options.other_names = {{"last.weight", {"lm_head.weight"}}};
      }
      Engine engine(world, net, options);
      engine.backward(net->last->weight.square().sum());
      const at::Tensor before = net->last->weight.detach().clone();
      engine.step();
      return (net->last->weight.detach() - before).clone();
    };
    // AdamW's first step moves every element by the learning rate.
    const at::Tensor by_adamw = moved(true).abs();
    EXPECT_TRUE(by_adamw.allclose(by_adamw.mean(), 0.1, 0)) << by_adamw;
    const at::Tensor by_muon = moved(false).abs();
    EXPECT_FALSE(by_muon.allclose(by_muon.mean(), 0.1, 0)) << by_muon;
  });
}

} // namespace tessera::engine::reference_test

// SPDX-License-Identifier: Apache-2.0
// Mixed precision where a user meets it; the numbers of whole runs are those of
// matrix_test.
#include "engine/twin.h"
#include "support/ranks.h"

#include <map>
#include <string>

namespace tessera::tests::precision_test {

namespace {

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : in(register_module("in", torch::nn::Linear(kWidth, 5))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})))),
        head(register_module("head", torch::nn::Linear(5, 3))) {
    scale = register_buffer("scale", torch::full({3}, 0.1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = norm(in(x));
    hidden_dtype = hidden.scalar_type();
    return head(hidden) * scale;
  }
  torch::nn::Linear in;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  at::Tensor scale;
  at::ScalarType hidden_dtype = at::kFloat;
};
TORCH_MODULE(Normed);

EngineOptions bfloat16_options() {
  EngineOptions options = group_per_layer();
  options.precision.parameters = at::kBFloat16;
  return options;
}

} // namespace

class Precision : public ::testing::TestWithParam<int> {};

// A writable gather() would round them to bfloat16.
TEST_P(Precision, WrittenValuesReachMasterWeightsExactly) {
  run_ranks(GetParam(), [](World&) {
    torch::manual_seed(1);
    Normed net;
    std::map<std::string, at::Tensor> wanted;
    for (const auto& item : net->named_parameters()) {
      wanted[item.key()] = item.value().detach().clone();
    }
    auto engine = wrap(net, bfloat16_options());
    for (int i = 0; i < 300; ++i) {
      engine.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            EXPECT_EQ(value.scalar_type(), at::kFloat);
            value.add_(1e-4);
            wanted[name].add_(1e-4);
          },
          /*writable=*/true);
    }
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          EXPECT_TRUE(value.equal(wanted[name])) << name;
        });
    // Operators see them, too.
    const auto scope = engine.gather();
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(
          item.value().equal(wanted[item.key()].to(item.value().scalar_type())))
          << item.key();
    }
  });
}

TEST_P(Precision, ParametersComputeInTheirTypeAndNormsInFloat32) {
  run_ranks(GetParam(), [](World&) {
    torch::manual_seed(1);
    Normed net;
    const at::Tensor before = net->in->weight.detach().clone();
    auto engine = wrap(net, bfloat16_options());
    EXPECT_EQ(net->in->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net->scale.scalar_type(), at::kFloat);
    // Float32 in, as the module's user does it.
    const at::Tensor out = net(torch::ones({2, kWidth}));
    EXPECT_EQ(net->hidden_dtype, at::kBFloat16);
    engine.backward(out.to(at::kFloat).sum());
    EXPECT_EQ(engine.grad(net->in->weight).scalar_type(), at::kFloat);
    engine.zero_grad();
    // Nothing was trained: unwrapping gives back every bit.
    engine.unwrap();
    EXPECT_EQ(net->in->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(net->in->weight, before));
  });
}

TEST_P(Precision, NamedModulesKeepFloat32) {
  run_ranks(GetParam(), [](World&) {
    Normed net;
    EngineOptions options = bfloat16_options();
    options.sharding.modules = {{.path = "head", .options = {.float32 = true}}};
    auto engine = wrap(net, options);
    EXPECT_EQ(net->head->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net(torch::ones({2, kWidth})).scalar_type(), at::kFloat);
  });
}

TEST_P(Precision, WritingOneElementKeepsTheOthersPrecision) {
  run_ranks(GetParam(), [](World&) {
    torch::manual_seed(1);
    Normed net;
    const at::Tensor before = net->in->weight.detach().clone();
    auto engine = wrap(net, bfloat16_options());
    {
      const auto scope = engine.gather({net->in->weight}, {.writable = true});
      const c10::NoGradGuard no_grad;
      net->in->weight[2][3] = 1.5;
    }
    at::Tensor expected = before;
    expected[2][3] = 1.5;
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          if (name == "in.weight") {
            EXPECT_TRUE(torch::equal(value, expected));
          }
        });
  });
}

TEST_P(Precision, BuffersChangeWhenAsked) {
  run_ranks(GetParam(), [](World&) {
    Normed net;
    EngineOptions options = bfloat16_options();
    options.precision.buffers = at::kBFloat16;
    auto engine = wrap(net, options);
    EXPECT_EQ(net->scale.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net(torch::ones({2, kWidth})).scalar_type(), at::kBFloat16);
  });
}

// The gradient of such a loss is the scale, and 65536, where it begins, is more
// than float16 has.
TEST_P(Precision, AFloat16LossDoesNotOverflowBecauseOfItsScale) {
  run_ranks(GetParam(), [](World& world) {
    Stack net;
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kHalf;
    auto engine = wrap(net, options);
    EXPECT_EQ(engine.loss_scale(), 65536);
    const at::Tensor x = batch_of(0, world.rank()).to(at::kHalf);
    // Above 2, so that the scaled loss is not in float16 either.
    engine.backward(net(x).mean() + 100);
    EXPECT_EQ(engine.loss_scale(), 32768);
    // Each number of the last bias is in half of the results.
    EXPECT_TRUE(torch::allclose(
        engine.grad(net->last->bias),
        torch::full({2}, 0.5),
        /*rtol=*/std::ldexp(1.0, -10)));
    EXPECT_TRUE(engine.step());
  });
}

TEST_P(Precision, ABackwardWithoutTheLossScaleIsAnError) {
  run_ranks(GetParam(), [](World& world) {
    Stack net;
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kHalf;
    auto engine = wrap(net, options);
    const at::Tensor x = batch_of(0, world.rank()).to(at::kHalf);
    engine.backward(net(x).mean());
    EXPECT_TRUE(engine.step());
    net(x).to(at::kFloat).mean().backward();
    expect_throws(
        [&] { engine.step(); }, {"the loss scale of", "engine.backward(loss)"});
  });
}

TEST_P(Precision, ABackwardWithoutTheLossScaleBesideAnotherIsAnError) {
  run_ranks(GetParam(), [](World& world) {
    Stack net;
    EngineOptions options = group_per_layer();
    options.loss_scale.fixed = 1024;
    auto engine = wrap(net, options);
    Stack head;
    auto other = wrap(head, options);
    const at::Tensor x = batch_of(0, world.rank()).to(at::kFloat);
    const auto loss = [&] { return net(x).mean(); };
    const auto of_both = [&] {
      return (net(x).mean(1, true) + head(x)).mean();
    };
    const std::vector<std::function<void()>> cases{
        [&] {
          engine.backward(loss());
          loss().backward();
        },
        [&] {
          loss().backward();
          engine.backward(loss());
        },
        [&] {
          engine.backward(loss());
          other.backward(of_both());
        }};
    for (const auto& backwards : cases) {
      backwards();
      expect_throws(
          [&] { engine.step(); },
          {"the loss scale of 1024",
           "those of 'first.weight'",
           "backward() of another engine",
           "a module that contains both"});
      // They can be dropped.
      engine.zero_grad();
      other.zero_grad();
      engine.backward(loss());
      EXPECT_TRUE(engine.step());
    }
    // Nor need they be divided by anything.
    Stack plain;
    options.loss_scale.fixed = 1;
    auto unscaled = wrap(plain, options);
    unscaled.backward(plain(x).mean());
    plain(x).mean().backward();
    EXPECT_TRUE(unscaled.step());
  });
}

TEST_P(Precision, AFixedScaleThatAFloat16LossDoesNotHoldIsAnError) {
  run_ranks(GetParam(), [](World& world) {
    Stack net;
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kHalf;
    options.loss_scale.fixed = 65536;
    auto engine = wrap(net, options);
    const at::Tensor x = batch_of(0, world.rank()).to(at::kHalf);
    expect_throws(
        [&] { engine.backward(net(x).sum()); },
        {"loss_scale.fixed is 65536", "float16"});
    // In float32 it holds.
    engine.backward(net(x).to(at::kFloat).sum() / 1e4);
    EXPECT_TRUE(engine.step());
  });
}

TEST_P(Precision, AnExpressionThatMatchesNothingIsAnError) {
  run_ranks(GetParam(), [](World&) {
    Normed net;
    EngineOptions options = bfloat16_options();
    options.sharding.modules = {
        {.path = "heads", .options = {.float32 = true}}};
    expect_throws([&] { wrap(net, options); }, {"'heads'", "'head'"});
  });
}

TEST_P(Precision, OptionsOutsideTheirRangeAreNamed) {
  run_ranks(GetParam(), [](World&) {
    Normed net;
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kDouble;
    expect_throws([&] { wrap(net, options); }, {"precision.parameters"});
    options = group_per_layer();
    options.sharding.zero_stage = 4;
    expect_throws([&] { wrap(net, options); }, {"zero_stage is 4"});
  });
}

TEST(Precision, AModuleInFloat16IsToldThatItsLossIsNotScaled) {
  const auto tells = [](std::optional<double> scale) {
    const auto results = run_ranks_expecting(2, [&](World&) {
      torch::manual_seed(1);
      Normed net;
      net->to(at::kHalf);
      EngineOptions options = group_per_layer();
      options.loss_scale.fixed = scale;
      wrap(net, options);
    });
    EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
    EXPECT_EQ(results[1].output.find("is not scaled"), std::string::npos);
    return results[0].output.find("is float16, and the loss is not scaled") !=
           std::string::npos;
  };
  EXPECT_TRUE(tells(std::nullopt));
  EXPECT_FALSE(tells(1));
  EXPECT_FALSE(tells(128));
}

TEST(MemoryBudget, TooLittleIsAnErrorThatSaysHowMuchIsMissing) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World&) {
      Normed net;
      EngineOptions options = group_per_layer();
      options.memory.device_bytes = 300;
      expect_throws(
          [&] { wrap(net, options); },
          {"memory budget", "too small", "memory.device_bytes"});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Precision, ::testing::Values(1, 2, 3));

} // namespace tessera::tests::precision_test

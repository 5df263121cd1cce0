// SPDX-License-Identifier: Apache-2.0
// Recomputation without an engine: values, gradients, random numbers and
// autocast are those of the plain forward, to the last bit.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace tessera::sharding::checkpoint_test {

namespace {

/// Counts its forwards and remembers the last tensor inside.
struct Probe {
  int forwards = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl> inside{
      c10::intrusive_ptr<c10::TensorImpl>()};
};

enum class Activation { kTanh, kGelu };

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::shared_ptr<Probe> probe_ = nullptr)
      : up(6, 9), down(9, 6), drop(0.3), probe(std::move(probe_)) {
    register_module("up", up);
    register_module("down", down);
    register_module("drop", drop);
  }
  at::Tensor forward(
      const at::Tensor& x,
      const std::optional<at::Tensor>& bias = std::nullopt,
      Activation activation = Activation::kTanh,
      double scale = 1) {
    at::Tensor h = up(x);
    h = activation == Activation::kTanh ? h.tanh() : torch::gelu(h);
    if (bias && bias->defined()) {
      h = h + *bias;
    }
    if (probe) {
      ++probe->forwards;
      probe->inside =
          c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
    }
    return down(drop(h)) * scale;
  }
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
  std::shared_ptr<Probe> probe;
};
TORCH_MODULE(Mlp);

Mlp make_mlp(std::shared_ptr<Probe> probe = nullptr) {
  torch::manual_seed(3);
  return Mlp(std::move(probe));
}

at::Tensor input(bool requires_grad = true) {
  torch::manual_seed(4);
  return torch::randn({5, 6}).set_requires_grad(requires_grad);
}

using Gradients = std::map<std::string, at::Tensor>;

Gradients gradients_of(const torch::nn::Module& module) {
  Gradients gradients;
  for (const auto& item : module.named_parameters()) {
    gradients[item.key()] = item.value().grad();
  }
  return gradients;
}

void expect_equal(const Gradients& got, const Gradients& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, gradient] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    ASSERT_EQ(got.at(name).defined(), gradient.defined()) << name;
    if (gradient.defined()) {
      EXPECT_TRUE(torch::equal(got.at(name), gradient)) << name;
    }
  }
}

/// Runs `body(module)` with the plain and the checkpointed module, which gives
/// the tensors to compare, and compares them and all gradients.
template <typename Body>
void expect_same_as_plain(const Body& body) {
  Mlp plain = make_mlp();
  CheckpointBlock<Mlp> block(make_mlp());
  torch::manual_seed(9);
  const std::vector<at::Tensor> want = body(plain);
  const at::Tensor next_want = torch::rand({3});
  torch::manual_seed(9);
  const std::vector<at::Tensor> got = body(block);
  const at::Tensor next_got = torch::rand({3});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], want[i])) << "tensor " << i;
  }
  expect_equal(gradients_of(*block), gradients_of(*plain));
  EXPECT_TRUE(torch::equal(next_got, next_want)) << "the generator moved";
}

} // namespace

TEST(Checkpoint, EqualsThePlainForwardWithDropout) {
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor x = input();
    const at::Tensor y = mlp(x);
    y.square().sum().backward();
    return std::vector{y, x.grad()};
  });
}

TEST(Checkpoint, NamesAreThoseOfTheModule) {
  CheckpointBlock<Mlp> block(make_mlp());
  std::vector<std::string> names = block->named_parameters().keys();
  EXPECT_EQ(names, make_mlp()->named_parameters().keys());
  EXPECT_NE(dynamic_cast<MlpImpl*>(block.get()), nullptr);
}

TEST(Checkpoint, KeepsNothingOfTheInsideAndRunsAgainOnce) {
  const auto probe = std::make_shared<Probe>();
  CheckpointBlock<Mlp> block(make_mlp(probe));
  const at::Tensor y = block(input());
  EXPECT_TRUE(probe->inside.expired());
  EXPECT_EQ(probe->forwards, 1);
  y.sum().backward();
  EXPECT_TRUE(probe->inside.expired());
  EXPECT_EQ(probe->forwards, 2);
}

TEST(Checkpoint, ArgumentsOfEveryKind) {
  const auto run = [](auto& mlp, const std::optional<at::Tensor>& bias) {
    const at::Tensor x = input();
    mlp(x, bias, Activation::kGelu, 0.5).square().sum().backward();
    return x.grad();
  };
  expect_same_as_plain([&](auto& mlp) {
    const at::Tensor bias = torch::ones({9}).requires_grad_();
    return std::vector{
        run(mlp, bias),
        bias.grad(),
        run(mlp, torch::ones({9})), // needs no gradient
        run(mlp, at::Tensor()), // undefined
        run(mlp, std::nullopt)};
  });
}

TEST(Checkpoint, TrainsWhenNoInputRequiresAGradient) {
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor y = mlp(input(/*requires_grad=*/false));
    EXPECT_TRUE(y.requires_grad());
    y.square().sum().backward();
    return std::vector{y};
  });
}

TEST(Checkpoint, AFrozenBlockWithoutDifferentiableInputIsNotRecomputed) {
  const auto probe = std::make_shared<Probe>();
  CheckpointBlock<Mlp> block(make_mlp(probe));
  for (const auto& parameter : block->parameters()) {
    parameter.set_requires_grad(false);
  }
  EXPECT_FALSE(block(input(false)).requires_grad());
  // With one it is: the gradient passes through.
  const at::Tensor x = input();
  block(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(probe->forwards, 3);
}

TEST(Checkpoint, UsedTwiceInOneForward) {
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor x = input();
    const at::Tensor y = mlp(mlp(x)) + mlp(x * 2);
    y.square().sum().backward();
    return std::vector{y, x.grad()};
  });
}

TEST(Checkpoint, BackwardTwiceThroughAKeptGraph) {
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor x = input();
    const at::Tensor loss = mlp(x).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return std::vector{x.grad()};
  });
}

TEST(Checkpoint, WithoutGradientsItIsThePlainForward) {
  const auto probe = std::make_shared<Probe>();
  CheckpointBlock<Mlp> block(make_mlp(probe));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(block(input()).requires_grad());
  EXPECT_EQ(probe->forwards, 1);
}

TEST(Checkpoint, CanBeSwitchedOff) {
  const auto probe = std::make_shared<Probe>();
  CheckpointBlock<Mlp> block(make_mlp(probe), {.use_checkpoint = false});
  block(input()).sum().backward();
  EXPECT_EQ(probe->forwards, 1);
}

namespace {

/// Returns several things, of which callers use some.
struct ForkImpl : torch::nn::Module {
  ForkImpl() : left(6, 6), right(6, 6) {
    register_module("left", left);
    register_module("right", right);
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>, std::optional<at::Tensor>>
  forward(const std::vector<at::Tensor>& xs, bool with_rank) {
    const at::Tensor a = left(xs.at(0));
    const at::Tensor b = right(xs.at(1));
    return {
        a,
        {b, at::Tensor(), a.argmax(1)},
        with_rank ? std::optional(b.argmax(0)) : std::nullopt};
  }
  torch::nn::Linear left, right;
};
TORCH_MODULE(Fork);

Fork make_fork() {
  torch::manual_seed(6);
  return Fork();
}

} // namespace

TEST(Checkpoint, ResultsOfEveryKindAndUnusedOnes) {
  for (const bool use_both : {true, false}) {
    Fork plain = make_fork();
    CheckpointBlock<Fork> block(make_fork());
    const auto run = [&](auto& fork) {
      const at::Tensor x = input();
      const auto [a, list, rank] =
          fork(std::vector<at::Tensor>{x, x * 2}, true);
      EXPECT_FALSE(list[1].defined());
      EXPECT_FALSE(list[2].requires_grad());
      EXPECT_TRUE(rank.has_value());
      (use_both ? a.sum() + list[0].square().sum() : list[0].square().sum())
          .backward();
      return std::vector{x.grad(), a, list[0], list[2], *rank};
    };
    const auto want = run(plain);
    const auto got = run(block);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    }
    expect_equal(gradients_of(*block), gradients_of(*plain));
    EXPECT_EQ(block->left->weight.grad().defined(), use_both);
  }
}

namespace {

/// Two checkpointed modules in a checkpointed one.
struct NestImpl : torch::nn::Module {
  NestImpl(bool checkpoint, const std::shared_ptr<Probe>& probe)
      : first(make_mlp(probe), CheckpointOptions{checkpoint}),
        second(make_mlp(), CheckpointOptions{checkpoint}) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(first(x)) + x;
  }
  CheckpointBlock<Mlp> first, second;
};
TORCH_MODULE(Nest);

} // namespace

TEST(Checkpoint, Nested) {
  const auto probe = std::make_shared<Probe>();
  Nest plain(false, nullptr);
  CheckpointBlock<Nest> block(Nest(true, probe));
  const auto run = [](auto& nest) {
    torch::manual_seed(12);
    const at::Tensor x = input();
    const at::Tensor y = nest(x);
    y.square().sum().backward();
    return std::vector{y, x.grad(), torch::rand({2})};
  };
  const auto want = run(plain);
  const auto got = run(block);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
  }
  expect_equal(gradients_of(*block), gradients_of(*plain));
  // Forward, the outer block's recomputation, its own.
  EXPECT_EQ(probe->forwards, 3);
}

TEST(Checkpoint, AnInputThatIsPassedThrough) {
  struct PassImpl : torch::nn::Module {
    PassImpl() : layer(register_module("layer", torch::nn::Linear(6, 6))) {}
    std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(
        const at::Tensor& x,
        const at::Tensor& constant) {
      return {layer(x), x, constant};
    }
    torch::nn::Linear layer;
  };
  using Pass = torch::nn::ModuleHolder<PassImpl>;
  torch::manual_seed(2);
  CheckpointBlock<Pass> block(std::make_shared<PassImpl>());
  const at::Tensor x = input();
  const at::Tensor constant = torch::ones({6});
  const auto [y, same, still] = block(x, constant);
  EXPECT_TRUE(torch::equal(same, x));
  EXPECT_FALSE(same.is_same(x));
  (y.sum() + (same * 3).sum() + (still * 5).sum()).backward();
  const at::Tensor expected = block->layer->weight.sum(0) + 3;
  EXPECT_TRUE(torch::allclose(x.grad(), expected.expand_as(x)));
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_FALSE(constant.grad().defined());
}

TEST(Checkpoint, RecomputesUnderTheForwardsAutocast) {
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor x = input();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    const at::Tensor y = mlp(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.to(at::kFloat).square().sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return std::vector{y, x.grad()};
  });
}

TEST(Checkpoint, BackwardInsideOfAutocast) {
  // A cast of a weight that the first forward had cached would have no
  // gradient.
  expect_same_as_plain([](auto& mlp) {
    const at::Tensor x = input();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    mlp(x).to(at::kFloat).square().sum().backward();
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return std::vector{x.grad()};
  });
}

TEST(Checkpoint, SaysWhatItCannotDo) {
  CheckpointBlock<Mlp> block(make_mlp());
  const at::Tensor x = input();
  expect_error(
      [&] { torch::autograd::grad({block(x).sum()}, {x}); },
      {"torch::autograd::grad()", "use_checkpoint = false"});
  expect_error(
      [&] { block(x).sum().backward({}, {}, /*create_graph=*/true); },
      {"create_graph", "use_checkpoint = false"});
}

TEST(Checkpoint, AnInputThatChangesIsNoticed) {
  struct InplaceImpl : torch::nn::Module {
    InplaceImpl() : layer(register_module("layer", torch::nn::Linear(6, 6))) {}
    at::Tensor forward(at::Tensor x) {
      return layer(x.mul_(2));
    }
    torch::nn::Linear layer;
  };
  CheckpointBlock<torch::nn::ModuleHolder<InplaceImpl>> inside(
      std::make_shared<InplaceImpl>());
  expect_error([&] { inside(input() * 1); }, {"changed one of its inputs"});

  // After the forward, autograd's own check finds it.
  CheckpointBlock<Mlp> block(make_mlp());
  const at::Tensor x = input(false);
  const at::Tensor y = block(x);
  x.zero_();
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(Checkpoint, AThrowingRecomputationLeavesThingsInOrder) {
  struct FlakyImpl : torch::nn::Module {
    FlakyImpl() : layer(register_module("layer", torch::nn::Linear(6, 6))) {}
    at::Tensor forward(const at::Tensor& x) {
      TESSERA_CHECK(++calls != 2, "on purpose");
      return layer(x);
    }
    torch::nn::Linear layer;
    int calls = 0;
  };
  CheckpointBlock<torch::nn::ModuleHolder<FlakyImpl>> block(
      std::make_shared<FlakyImpl>());
  const at::Tensor y = block(input());
  torch::manual_seed(1);
  const at::Tensor next = torch::rand({2});
  torch::manual_seed(1);
  EXPECT_ANY_THROW(y.sum().backward());
  EXPECT_TRUE(torch::equal(torch::rand({2}), next));
  EXPECT_TRUE(torch::GradMode::is_enabled());
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  const at::Tensor x = input();
  block(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

namespace {

const c10::Device kOther(c10::DeviceType::PrivateUse1, 0);

/// A device that has a generator, and nothing else.
struct GeneratorHooks : at::PrivateUse1HooksInterface {
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex /*device*/) const override {
    static const at::Generator generator =
        at::make_generator<at::CPUGeneratorImpl>(7);
    return generator;
  }
};

/// Draws on the device of its weight, whose arguments are on the CPU.
struct DrawsElsewhereImpl : torch::nn::Module {
  DrawsElsewhereImpl() {
    scale = register_parameter("scale", torch::ones({4}));
    c10::Storage memory(
        c10::Storage::use_byte_size_t{}, 0, c10::DataPtr(nullptr, kOther));
    register_parameter(
        "elsewhere",
        at::detail::make_tensor<c10::TensorImpl>(
            std::move(memory),
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
            caffe2::TypeMeta::Make<float>()),
        /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) {
    draws.push_back(
        at::rand({4}, at::globalContext().defaultGenerator(kOther)));
    return x * scale * draws.back();
  }

  at::Tensor scale;
  std::vector<at::Tensor> draws;
};
TORCH_MODULE(DrawsElsewhere);

/// Running statistics of LibTorch's and of its own.
struct CountsImpl : torch::nn::Module {
  CountsImpl()
      : linear(6, 6),
        norm(6),
        total(register_buffer("total", torch::zeros({1}))) {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) {
    total += 1;
    return norm(linear(x));
  }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  at::Tensor total;
};
TORCH_MODULE(Counts);

} // namespace

TEST(Checkpoint, RunningStatisticsCountAForwardOnce) {
  torch::manual_seed(3);
  Counts plain;
  torch::manual_seed(3);
  CheckpointBlock<Counts> block{Counts()};
  for (int i = 0; i < 3; ++i) {
    plain(input()).square().sum().backward();
    block(input()).square().sum().backward();
  }
  const auto expected = plain->named_buffers();
  EXPECT_EQ(expected["norm.num_batches_tracked"].item<int64_t>(), 3);
  for (const auto& buffer : block->named_buffers()) {
    EXPECT_TRUE(buffer.value().equal(expected[buffer.key()])) << buffer.key();
  }
  EXPECT_TRUE(block->linear->weight.grad().equal(plain->linear->weight.grad()));
  block->eval();
  plain->eval();
  EXPECT_TRUE(block(input()).equal(plain(input())));
}

TEST(Checkpoint, RandomNumbersOfTheParametersDeviceAreDrawnAgain) {
  tests::run_ranks(1, [](World&) {
    GeneratorHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    CheckpointBlock<DrawsElsewhere> block{DrawsElsewhere()};
    block(torch::ones({4})).sum().backward();
    ASSERT_EQ(block->draws.size(), 2u);
    EXPECT_TRUE(block->draws[0].equal(block->draws[1]));
    // The forward's draw, and nothing of the recomputation, moves it on.
    EXPECT_FALSE(
        at::rand({4}, hooks.getDefaultGenerator(0)).equal(block->draws[0]));
  });
}

} // namespace tessera::sharding::checkpoint_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "sharding/tensor_parallel/strange_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/tensor_parallel/divided_view.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::sharding::dtensor_test {

namespace {

using enum TensorDivision;

// Float64 in another order: some hundreds of roundings of numbers of size 1.
constexpr double kTolerance = 1e-11;

TensorPlan plan_of(const StrangeModelOptions& options, int ranks) {
  const int64_t head = options.features / options.heads;
  TensorPlan plan{
      {"embed", kVocab},
      {"layers.*.attention.q_proj",
       kColumn,
       head * options.heads / options.key_heads},
      {"layers.*.attention.out_proj",
       kRow,
       head * options.heads / options.key_heads},
      {"layers.*.up", kColumn},
      {"layers.*.down", kRow},
      {"head", kColumn}}; // also where it is tied to the embedding
  if (options.key_heads >= ranks) {
    plan.push_back({"layers.*.attention.k_proj", kColumn, head});
    plan.push_back({"layers.*.attention.v_proj", kColumn, head});
  } else { // every rank has all key heads
    plan[1].unit = head;
    plan[2].unit = head;
  }
  return plan;
}

StrangeModel model_of(const StrangeModelOptions& options) {
  torch::manual_seed(6);
  StrangeModel model(options);
  model->to(torch::kDouble);
  if (options.tied) {
    model->head->weight = model->embed->weight;
  }
  return model;
}

void expect_same_gradients(
    const torch::nn::Module& divided,
    const torch::nn::Module& full,
    int rank) {
  const TensorSpecs specs = specs_in(divided);
  const auto full_tensors = full.named_parameters();
  for (const auto& item : divided.named_parameters()) {
    const at::Tensor& gradient = full_tensors[item.key()].grad();
    if (!gradient.defined()) { // a tied head's own weight
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
      continue;
    }
    const at::Tensor expected = tests::local_part(
        gradient, specs.at(item.value().unsafeGetTensorImpl()), rank);
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_FALSE(is_dtensor(item.value().grad())) << item.key();
    EXPECT_TRUE(item.value().grad().allclose(expected, 0, kTolerance))
        << item.key() << ": "
        << (item.value().grad() - expected).abs().max().item<double>();
  }
}

void check_model(
    World& world,
    const StrangeModelOptions& options,
    bool sequence,
    int64_t length) {
  auto group = world.new_communicator("tensor");
  StrangeModel full = model_of(options);
  StrangeModel divided = model_of(options);
  apply_tensor_plan(
      *divided, plan_of(options, world.size()), {group.get(), sequence});
  torch::manual_seed(1);
  const at::Tensor text =
      torch::randint(options.vocab - 1, {3, length + 1}, at::kLong);
  const at::Tensor tokens = text.narrow(1, 0, length).contiguous();
  const at::Tensor targets = text.narrow(1, 1, length).contiguous();
  for (int step = 0; step < 2; ++step) {
    divided->zero_grad();
    full->zero_grad();
    torch::manual_seed(9 + step);
    const at::Tensor expected = full->forward(tokens, targets);
    torch::manual_seed(9 + step);
    const at::Tensor loss = divided->forward(tokens, targets);
    EXPECT_FALSE(is_dtensor(loss));
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), kTolerance);
    loss.backward();
    expected.backward();
    expect_same_gradients(*divided, *full, world.rank());
    torch::optim::SGD(divided->parameters(), 0.5).step();
    torch::optim::SGD(full->parameters(), 0.5).step();
  }
}

} // namespace

TEST(DTensor, AModelOfAStrangerTrainsAsOnOneRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      for (const bool fused : {false, true}) {
        SCOPED_TRACE(std::to_string(ranks) + (sequence ? " sequence" : ""));
        tests::run_ranks(ranks, [=](World& world) {
          check_model(
              world,
              {.heads = ranks == 4 ? 4 : 6,
               .key_heads = ranks == 4 ? 4 : 6,
               .length = 12,
               .fused_attention = fused,
               .tied = fused},
              sequence,
              12);
        });
      }
    }
  }
}

TEST(DTensor, DropsWhatOneRankDrops) {
  for (const bool sequence : {false, true}) {
    for (const bool fused : {false, true}) {
      tests::run_ranks(2, [=](World& world) {
        check_model(
            world, {.dropout = 0.3, .fused_attention = fused}, sequence, 8);
      });
    }
  }
}

TEST(DTensor, FewerKeyHeadsThanRanks) {
  for (const bool sequence : {false, true}) {
    for (const bool fused : {false, true}) {
      // 2 of 8 query heads per key head and rank; 6 heads do not fit evenly.
      for (const int64_t heads : {8, 6}) {
        tests::run_ranks(4, [=](World& world) {
          check_model(
              world,
              {.heads = heads, .key_heads = 2, .fused_attention = fused},
              sequence,
              8);
        });
      }
    }
  }
}

TEST(DTensor, CustomFunctionsSeeTheWholeGradient) {
  struct Doubled : torch::autograd::Function<Doubled> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* /*context*/,
        const at::Tensor& x) {
      return x * 2;
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* /*context*/,
        const torch::autograd::variable_list& gradients) {
      return {gradients[0] * 2};
    }
  };
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const auto run = [&](bool divides) {
      torch::manual_seed(3);
      torch::nn::Linear first(6, 11);
      torch::nn::Linear second(11, 6);
      first->to(torch::kDouble);
      second->to(torch::kDouble);
      if (divides) {
        apply_tensor_plan(*first, {{"", kColumn}}, {group.get()});
        apply_tensor_plan(*second, {{"", kRow}}, {group.get()});
      }
      const at::Tensor x = torch::randn({4, 6}, at::kDouble).requires_grad_();
      at::Tensor inner = first->forward(x);
      EXPECT_EQ(is_dtensor(inner), divides);
      inner.retain_grad();
      inner = Doubled::apply(inner);
      at::Tensor hooked;
      inner.register_hook(
          [&](const at::Tensor& gradient) { hooked = gradient; });
      const at::Tensor detached = inner.detach().requires_grad_();
      second->forward(detached * inner).square().sum().backward();
      EXPECT_EQ(is_dtensor(hooked), divides);
      return std::vector<at::Tensor>{
          x.grad(), full_tensor(hooked), full_tensor(detached.grad())};
    };
    const auto divided = run(true);
    const auto full = run(false);
    for (size_t i = 0; i < full.size(); ++i) {
      EXPECT_TRUE(divided[i].allclose(full[i], 0, kTolerance)) << i;
    }
  });
}

TEST(DTensor, IsComputedAgainInCheckpoints) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    for (const bool sequence : {false, true}) {
      const auto gradients = [&](bool checkpointed) {
        StrangeModelOptions options{.dropout = 0.2};
        torch::manual_seed(3);
        StrangeLayer layer(options);
        StrangeLayer before(options);
        const TensorParallel tp{group.get(), sequence};
        const TensorPlan plan{
            {"attention.out_proj", kRow, 4},
            {"attention.*_proj", kColumn, 4},
            {"up", kColumn},
            {"down", kRow}};
        apply_tensor_plan(*layer, plan, tp);
        apply_tensor_plan(*before, plan, tp);
        const at::Tensor x = torch::randn({3, 8, 24}).requires_grad_();
        const at::Tensor padding = torch::ones({3, 8}, at::kBool);
        const at::Tensor middle = before->forward(x, padding);
        EXPECT_EQ(is_dtensor(middle), sequence);
        const auto run = [&](const at::Tensor& in) {
          return layer->forward(in, padding);
        };
        const at::Tensor y = checkpointed
                                 ? checkpoint({.trains = true}, run, middle)
                                 : run(middle);
        EXPECT_EQ(is_dtensor(y), sequence);
        y.square().sum().backward();
        std::vector<at::Tensor> found{full_tensor(y.detach()), x.grad()};
        for (const auto& module : {layer, before}) {
          for (const at::Tensor& parameter : module->parameters()) {
            found.push_back(parameter.grad());
          }
        }
        return found;
      };
      const auto once = gradients(false);
      const auto again = gradients(true);
      for (size_t i = 0; i < once.size(); ++i) {
        EXPECT_TRUE(once[i].equal(again[i])) << i;
      }
    }
  });
}

TEST(DTensor, OperatorsWithoutARuleAreComputedOnTheWhole) {
  tests::run_ranks(3, [](World& world) {
    auto group = world.new_communicator("tensor");
    torch::manual_seed(3);
    torch::nn::Linear full(5, 12);
    torch::nn::Linear divided(5, 12);
    full->to(torch::kDouble);
    divided->to(torch::kDouble);
    {
      const torch::NoGradGuard no_grad;
      divided->weight.copy_(full->weight);
      divided->bias.copy_(full->bias);
    }
    apply_tensor_plan(*divided, {{"", kColumn}}, {group.get()});
    using Use = std::function<at::Tensor(const at::Tensor&)>;
    const std::vector<Use> uses{
        [](const at::Tensor& x) { return x.cumsum(-1); },
        [](const at::Tensor& x) {
          return x.view({2, 2, 4, 3}).sum(2);
        },
        [](const at::Tensor& x) {
          return x.view({4, 2, 6}).softmax(1);
        },
        [](const at::Tensor& x) { return std::get<0>(x.sort(-1)); },
        [](const at::Tensor& x) { return x.chunk(4, -1)[1] * 2; },
        [](const at::Tensor& x) { return x.narrow(1, 2, 5).exp(); },
        [](const at::Tensor& x) {
          return x.index({"...", 3}).exp();
        },
        [](const at::Tensor& x) {
          return torch::cat({x, 2 * x}, -1);
        },
        [](const at::Tensor& x) {
          return torch::cat({x, 2 * x}, 0);
        },
        [](const at::Tensor& x) {
          return torch::stack({x, 2 * x}, 1);
        },
        [](const at::Tensor& x) { return torch::softmax(x, -1); },
        [](const at::Tensor& x) { return x.t().contiguous().matmul(x); },
        [](const at::Tensor& x) { return x.matmul(x.t()); },
        [](const at::Tensor& x) {
          return torch::einsum("bi,ci->bc", {x, x + 1});
        },
        [](const at::Tensor& x) { return x.amax(0) + x.mean() + x.sum(-1)[0]; },
        [](const at::Tensor& x) { return x.std(-1); },
        [](const at::Tensor& x) { return torch::layer_norm(x, {12}); },
        [](const at::Tensor& x) {
          return torch::constant_pad_nd(x, {1, 2}, 0.5);
        },
        [](const at::Tensor& x) {
          return torch::constant_pad_nd(x, {0, 0, 1, 2}, 0.5);
        },
        [](const at::Tensor& x) {
          at::Tensor y = x.clone();
          y.masked_fill_(x > 0.1, 3.0);
          y.mul_(torch::arange(12));
          return y;
        },
        [](const at::Tensor& x) {
          at::Tensor y = torch::zeros({4, 12}, at::kDouble);
          y.copy_(x);
          return y * x;
        },
        [](const at::Tensor& x) { return torch::where(x > 0, x, 0.1 * x); },
        [](const at::Tensor& x) {
          return x.unsqueeze(1).expand({4, 3, 12});
        },
        [](const at::Tensor& x) { return x.unsqueeze(-1).squeeze(); },
        [](const at::Tensor& x) {
          return x.repeat({2, 3});
        },
        [](const at::Tensor& x) { return x.to(at::kFloat).to(at::kDouble); },
        [](const at::Tensor& x) { return torch::glu(x, -1); },
        [](const at::Tensor& x) {
          return torch::baddbmm(x, x.unsqueeze(0), x.t().unsqueeze(0).matmul(x))
              .tanh();
        }};
    const at::Tensor x = torch::randn({4, 5}, at::kDouble);
    for (size_t i = 0; i < uses.size(); ++i) {
      SCOPED_TRACE(i);
      const at::Tensor self_tensor = x.clone().requires_grad_();
      const at::Tensor full_input = x.clone().requires_grad_();
      const at::Tensor y = uses[i](divided->forward(self_tensor));
      const at::Tensor expected = uses[i](full->forward(full_input));
      EXPECT_EQ(y.sizes(), expected.sizes());
      EXPECT_TRUE(full_tensor(y).allclose(expected, 0, kTolerance));
      y.square().sum().backward();
      expected.square().sum().backward();
      EXPECT_TRUE(
          self_tensor.grad().allclose(full_input.grad(), 0, kTolerance));
    }
  });
}

// One head, one class: a divided dimension may have one element on one rank.
TEST(DTensor, OneRankSqueezesAndExpandsAsLibTorch) {
  Communicator alone("alone");
  torch::nn::Linear divided(5, 1);
  apply_tensor_plan(*divided, {{"", kColumn}}, {&alone});
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::ones({4, 5});
  const at::Tensor y = divided->forward(x);
  const at::Tensor full = full_tensor(y);
  EXPECT_TRUE(full_tensor(y.squeeze(-1)).equal(full.squeeze(-1)));
  EXPECT_TRUE(full_tensor(y.expand({4, 3})).equal(full.expand({4, 3})));
}

TEST(DTensor, RefusesWhatWouldBeLost) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    torch::nn::Linear divided(5, 12);
    apply_tensor_plan(*divided, {{"", kColumn}}, {group.get()});
    const torch::NoGradGuard no_grad;
    at::Tensor y = divided->forward(torch::ones({4, 5}));
    expect_error(
        [&] { y.select(1, 3).fill_(2); },
        {"fill_", "[4]", "copy", "full_tensor"});
    expect_error(
        [&] {
          y.view({4, 3, 4}).transpose(1, 2).reshape({4, 12}).add_(1);
        },
        {"add_", "[4, 12]", "copy"});
    expect_error([&] { y.select(1, 3).detach().fill_(2); }, {"fill_", "copy"});
    expect_error([&] { y.cumsum_(1); }, {"cumsum_", "[4, 12]", "tensor"});
    expect_error([&] { y.set_data(torch::ones({4, 12})); }, {"set_data"});
    expect_error(
        [&] {
          y.unsqueeze(0).expand({3, 4, 24});
        },
        {"expand", "[1, 4, 12]", "24"});
    // Views of own parts are views.
    y.select(0, 2).fill_(2);
    y.view({4, 4, 3}).select(0, 1).zero_();
    const at::Tensor full = full_tensor(y);
    EXPECT_EQ(full[2].sum().item<double>(), 24);
    EXPECT_EQ(full[1].abs().sum().item<double>(), 0);
  });
}

TEST(DividedView, FollowsHeads) {
  const auto view = [](std::vector<int64_t> from,
                       int64_t dim,
                       DimSplit split,
                       std::vector<int64_t> to) -> std::string {
    const auto found = divided_view(from, {dim, split}, to);
    return found ? std::to_string(found->dim) + ":" +
                       std::to_string(found->split.begin(1))
                 : "whole";
  };
  EXPECT_EQ(view({2, 5, 12}, 2, {12, 2, 3}, {2, 5, 4, 3}), "2:2");
  EXPECT_EQ(view({2, 5, 12}, 2, {12, 2, 1}, {2, 5, 4, 3}), "2:2"); // even
  EXPECT_EQ(view({2, 5, 12}, 2, {12, 3, 1}, {2, 5, 2, 6}), "whole");
  EXPECT_EQ(view({2, 5, 15}, 2, {15, 2, 3}, {2, 5, 5, 3}), "2:3"); // uneven
  EXPECT_EQ(view({2, 5, 15}, 2, {15, 2, 1}, {2, 5, 5, 3}), "whole");
  EXPECT_EQ(view({2, 5, 4, 3}, 2, {4, 2, 1}, {2, 5, 12}), "2:6");
  EXPECT_EQ(view({2, 5, 4, 3}, 2, {4, 2, 1}, {10, 12}), "1:6");
  EXPECT_EQ(view({2, 5, 4, 3}, 3, {3, 3, 1}, {2, 5, 12}), "whole");
  EXPECT_EQ(view({2, 6, 12}, 1, {6, 2, 1}, {12, 12}), "whole");
  EXPECT_EQ(view({1, 6, 12}, 1, {6, 2, 1}, {6, 12}), "0:3");
  EXPECT_EQ(view({2, 6, 12}, 1, {6, 2, 1}, {2, 1, 6, 12}), "2:3");
  EXPECT_EQ(view({2, 6, 12}, 1, {6, 2, 1}, {2, 72}), "1:36");
}

TEST(DTensor, LengthsThatCannotBeDividedStayWhole) {
  tests::run_ranks(
      3, [](World& world) { check_model(world, {}, /*sequence=*/true, 7); });
}

} // namespace tessera::sharding::dtensor_test

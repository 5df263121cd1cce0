// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/transformer_block_list.h"

#include "sharding/pages/grouped.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace tessera::sharding::transformer_block_list_test {

namespace {

/// One hidden state; the mask and the scale go to every block.
struct OneImpl : torch::nn::Module {
  OneImpl() : layer(5, 5) {
    register_module("layer", layer);
  }
  at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& mask,
      double scale) {
    ++forwards;
    return x + torch::dropout(layer(x).tanh(), 0.2, true) * mask * scale;
  }
  torch::nn::Linear layer;
  int forwards = 0;
};
TORCH_MODULE(One);

/// Two hidden states, as a decoder beside its encoder.
struct TwoImpl : torch::nn::Module {
  TwoImpl() : a(5, 5), b(5, 5) {
    register_module("a", a);
    register_module("b", b);
  }
  std::tuple<at::Tensor, at::Tensor> forward(
      const at::Tensor& x,
      const at::Tensor& y,
      const std::optional<at::Tensor>& bias) {
    const at::Tensor z = bias ? y + *bias : y;
    return {x + a(z).tanh(), y + b(x).tanh()};
  }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Two);

template <typename Holder>
std::vector<Holder> make_blocks(int count) {
  torch::manual_seed(2);
  std::vector<Holder> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.push_back(Holder());
  }
  return blocks;
}

void expect_same_gradients(
    const torch::nn::Module& got,
    const std::vector<std::vector<at::Tensor>>& want,
    double tolerance = 0) {
  size_t block = 0;
  for (const auto& child : got.children()) {
    const auto parameters = child->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor expected = want.at(block).at(i).grad();
      EXPECT_LE(
          (parameters[i].grad() - expected).abs().max().item<double>(),
          tolerance)
          << "block " << block << ", parameter " << i;
    }
    ++block;
  }
  EXPECT_EQ(block, want.size());
}

/// Five blocks by hand and as a list, with the gradient of the output alone or
/// also of all that entered a block.
void expect_one_hidden_state_threaded(bool with_entered) {
  const at::Tensor mask = torch::tensor({1.0F, 0.0F, 1.0F, 1.0F, 1.0F});
  auto plain = make_blocks<One>(5);
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({3, 5}).requires_grad_();
  std::vector<at::Tensor> entered;
  at::Tensor want = x;
  for (auto& block : plain) {
    entered.push_back(want);
    want = block(want, mask, 0.5);
  }
  const at::Tensor all_entered = torch::stack(entered);
  const auto loss = [&](const at::Tensor& output, const at::Tensor& states) {
    return output.square().sum() +
           (with_entered ? states.sum() : at::zeros({}));
  };
  loss(want, all_entered).backward();
  const at::Tensor next = torch::rand({2});
  std::vector<std::vector<at::Tensor>> parameters;
  for (auto& block : plain) {
    parameters.push_back(block->parameters());
  }
  // What comes back from the stack is added after the block's own gradient, or
  // between its parts: a rounding of numbers of size 10.
  const double tolerance = with_entered ? 1e-5 : 0;
  for (const size_t together : {1, 2, 3, 5, 9}) {
    for (const bool use_checkpoint : {true, false}) {
      TransformerBlockList<One> list(
          make_blocks<One>(5), {.use_checkpoint = use_checkpoint}, together);
      torch::manual_seed(8);
      const at::Tensor input = torch::randn({3, 5}).requires_grad_();
      const auto result = list->forward_with_hidden_states(input, mask, 0.5);
      EXPECT_TRUE(torch::equal(result.output, want));
      EXPECT_TRUE(torch::equal(result.entered, all_entered));
      loss(result.output, result.entered).backward();
      EXPECT_TRUE(torch::equal(torch::rand({2}), next));
      EXPECT_LE(
          (input.grad() - x.grad()).abs().max().item<double>(), tolerance);
      for (int b = 0; b < 5; ++b) {
        EXPECT_EQ(list->block(b)->forwards, use_checkpoint ? 2 : 1);
      }
      expect_same_gradients(*list, parameters, tolerance);
    }
  }
}

} // namespace

TEST(TransformerBlockList, ThreadsOneHiddenState) {
  expect_one_hidden_state_threaded(/*with_entered=*/false);
}

TEST(TransformerBlockList, GradientsComeBackFromAllHiddenStates) {
  expect_one_hidden_state_threaded(/*with_entered=*/true);
}

TEST(TransformerBlockList, ThreadsTwoHiddenStates) {
  auto plain = make_blocks<Two>(3);
  const at::Tensor bias = torch::full({5}, 0.1F);
  const at::Tensor x = torch::ones({2, 5}).requires_grad_();
  const at::Tensor y = torch::zeros({2, 5});
  at::Tensor a = x;
  at::Tensor b = y;
  std::vector<at::Tensor> entered_b;
  for (auto& block : plain) {
    entered_b.push_back(b);
    std::tie(a, b) = block(a, b, std::optional(bias));
  }
  (a.sum() + b.square().sum()).backward();
  std::vector<std::vector<at::Tensor>> parameters;
  for (auto& block : plain) {
    parameters.push_back(block->parameters());
  }

  TransformerBlockList<Two, 2> list(make_blocks<Two>(3));
  const at::Tensor input = torch::ones({2, 5}).requires_grad_();
  const auto [got_a, got_b] = list(input, y, std::optional(bias));
  EXPECT_TRUE(torch::equal(got_a, a));
  EXPECT_TRUE(torch::equal(got_b, b));
  (got_a.sum() + got_b.square().sum()).backward();
  EXPECT_TRUE(torch::equal(input.grad(), x.grad()));
  expect_same_gradients(*list, parameters);

  const auto states =
      list->forward_with_hidden_states(input, y, std::optional(bias));
  EXPECT_EQ(states.entered[0].sizes(), (std::vector<int64_t>{3, 2, 5}));
  EXPECT_TRUE(torch::equal(states.entered[1], torch::stack(entered_b)));
  EXPECT_TRUE(torch::equal(states.output[0], a));
}

TEST(TransformerBlockList, EveryBlockIsAGroupWithItsZeroStage) {
  struct Net : torch::nn::Module {
    Net() {
      std::vector<CheckpointBlock<One>> blocks;
      const auto plain = make_blocks<One>(3);
      blocks.emplace_back(plain[0]);
      blocks.emplace_back(plain[1]);
      blocks.emplace_back(plain[2], CheckpointOptions{.use_checkpoint = false});
      configure(*blocks[1], {.zero_stage = 2});
      configure(*blocks[2], {.zero_stage = 1});
      register_module("head", torch::nn::Linear(5, 2));
      register_module("layers", TransformerBlockList<One>(blocks));
    }
  };
  const Net net;
  std::map<std::string, std::optional<int>> stages;
  for (const auto& group : tests::grouped(net, {0})) {
    stages[group.name] = group.zero_stage;
    if (group.name == "layers.1") {
      EXPECT_EQ(group.parameters[0].record.name(), "layers.1.layer.weight");
    }
  }
  const std::map<std::string, std::optional<int>> expected{
      {"head", std::nullopt},
      {"layers.0", std::nullopt},
      {"layers.1", 2},
      {"layers.2", 1}};
  EXPECT_EQ(stages, expected);
}

TEST(TransformerBlockList, TrainAndEvalReachTheBlocks) {
  TransformerBlockList<One> list(make_blocks<One>(2));
  list->eval();
  EXPECT_FALSE(list->block(1)->is_training());
  EXPECT_FALSE(list->block(1)->layer->is_training());
  list->train();
  EXPECT_TRUE(list->block(1)->is_training());
}

TEST(TransformerBlockList, WrongArguments) {
  expect_error(
      [] { TransformerBlockList<One> list{std::vector<One>{}}; }, {"no block"});
  expect_error(
      [] { TransformerBlockList<One> list(make_blocks<One>(2), {}, 0); },
      {"blocks_per_checkpoint", "at least 1"});
}

} // namespace tessera::sharding::transformer_block_list_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/grouping.h"

#include "sharding/pages/grouped.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

namespace tessera::sharding::grouping_test {

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() : up(8, 16), down(16, 8) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  GptImpl() : embedding(50, 8), norm(torch::nn::LayerNormOptions({8})) {
    register_module("embedding", embedding);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
    register_module("norm", norm);
  }
  torch::nn::Embedding embedding;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm;
};

std::map<std::string, size_t> groups_of(
    const torch::nn::Module& module,
    int64_t min_group_numel = 0) {
  std::map<std::string, size_t> sizes;
  for (const auto& group : tests::grouped(module, {min_group_numel})) {
    sizes[group.name] = group.parameters.size();
  }
  return sizes;
}

using Sizes = std::map<std::string, size_t>;

} // namespace

TEST(Grouping, SiblingsOfOneTypeAreBlocks) {
  const Sizes expected{
      {"embedding", 1},
      {"block0", 4},
      {"block1", 4},
      {"block2", 4},
      {"norm", 2}};
  EXPECT_EQ(groups_of(GptImpl()), expected);
}

TEST(Grouping, ContainersAreTransparent) {
  torch::nn::ModuleList inner{Block(), Block()};
  struct Outer : torch::nn::Module {
    explicit Outer(torch::nn::ModuleList layers) {
      register_module("layers", std::move(layers));
    }
  };
  const Sizes expected{{"layers.0", 4}, {"layers.1", 4}};
  EXPECT_EQ(groups_of(Outer(inner)), expected);
}

TEST(Grouping, SmallOnesAreCollected) {
  // Blocks have 280 parameters, the embedding 400, the norm 16.
  const Sizes expected{
      {"embedding", 1},
      {"block0", 4},
      {"block1", 4},
      {"block2", 4},
      {"norm", 2}};
  EXPECT_EQ(groups_of(GptImpl(), 200), expected);
  const Sizes merged{
      {"embedding", 1}, {"block0+block1", 8}, {"block2+norm", 6}};
  EXPECT_EQ(groups_of(GptImpl(), 300), merged);
}

TEST(Grouping, TiedWeightsHaveAGroupOfTheirOwn) {
  // One tensor, registered in two blocks.
  struct Tied : torch::nn::Module {
    Tied() {
      const auto shared = torch::ones({8, 8}, torch::requires_grad());
      for (const char* name : {"first", "second"}) {
        auto block = register_module(name, Block());
        block->register_parameter("shared", shared);
      }
    }
  };
  const Sizes expected{{"first.shared", 1}, {"first", 4}, {"second", 4}};
  EXPECT_EQ(groups_of(Tied()), expected);
}

TEST(Grouping, FrozenAndOtherTypesAreApart) {
  GptImpl model;
  model.blocks[1]->up->weight.requires_grad_(false);
  model.blocks[2]->to(torch::kDouble);
  const Sizes expected{
      {"embedding", 1},
      {"block0", 4},
      {"block1[Float, frozen]", 1},
      {"block1[Float]", 3},
      {"block2", 4},
      {"norm", 2}};
  EXPECT_EQ(groups_of(model), expected);
}

TEST(Grouping, PartsOfABlockShareItsNumber) {
  // Of a block's 280 parameters 128 are frozen and 8 are double: too few, so
  // that those of all blocks are one group.
  GptImpl model;
  for (auto& block : model.blocks) {
    block->up->weight.requires_grad_(false);
    block->down->bias.set_data(block->down->bias.to(torch::kDouble));
  }
  std::map<std::string, std::vector<int>> blocks;
  for (const auto& group : tests::grouped(model, {20})) {
    blocks[group.name] = group.blocks;
  }
  EXPECT_EQ(blocks.at("block1[Float]"), std::vector{2});
  EXPECT_EQ(blocks.at("block1[Float, frozen]"), std::vector{2});
  EXPECT_EQ(blocks.at("block0[Double]"), (std::vector{1, 2, 3}));
}

namespace {

struct HintedImpl : torch::nn::LinearImpl, ConfiguredModule {
  explicit HintedImpl(std::optional<int> stage) : LinearImpl(8, 8) {
    module_options.zero_stage = stage;
  }
};

std::map<std::string, std::optional<int>> stages_of(
    const torch::nn::Module& module,
    int64_t min_group_numel) {
  std::map<std::string, std::optional<int>> stages;
  for (const auto& group : tests::grouped(module, {min_group_numel})) {
    stages[group.name] = group.zero_stage;
  }
  return stages;
}

using Stages = std::map<std::string, std::optional<int>>;

} // namespace

TEST(Grouping, AModulesZeroStageLandsInItsGroup) {
  // A layer of another type beside it, so that only the hint makes it a block.
  struct Inner : torch::nn::Module {
    Inner() {
      register_module("a", std::make_shared<HintedImpl>(2));
      register_module("b", std::make_shared<HintedImpl>(std::nullopt));
      register_module(
          "c", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    }
  };
  struct Outer : torch::nn::Module {
    Outer() {
      register_module("inner", std::make_shared<Inner>());
    }
  };
  const Stages expected{
      {"inner.a", 2}, {"inner.b", std::nullopt}, {"inner.c", std::nullopt}};
  EXPECT_EQ(stages_of(Outer(), 0), expected);
  // What asks for different things does not merge.
  const Stages merged{{"inner.a", 2}, {"inner.b+inner.c", std::nullopt}};
  EXPECT_EQ(stages_of(Outer(), 1000), merged);
}

TEST(Grouping, AFrozenPartKeepsTheZeroStage) {
  struct Net : torch::nn::Module {
    Net() {
      auto layer = register_module("a", std::make_shared<HintedImpl>(1));
      layer->bias.requires_grad_(false);
    }
  };
  const Stages expected{{"a[Float]", 1}, {"a[Float, frozen]", 1}};
  EXPECT_EQ(stages_of(Net(), 0), expected);
}

} // namespace tessera::sharding::grouping_test

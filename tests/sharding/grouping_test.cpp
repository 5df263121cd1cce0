// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/grouping.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

namespace tessera {

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    register_module("norm", torch::nn::LayerNorm(
                                torch::nn::LayerNormOptions({width})));
    register_module("up", torch::nn::Linear(width, 4 * width));
    register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x;
  }
};
TORCH_MODULE(Block);

std::vector<GroupSpec> groups_of(
    const torch::nn::Module& module,
    int64_t min_numel = 0) {
  GroupPolicy policy;
  policy.min_group_numel = min_numel;
  return make_groups(module, take_parameter_census(module), policy);
}

std::vector<std::string> names_of(const std::vector<GroupSpec>& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    names.push_back(group.name);
  }
  return names;
}

int64_t numel_of(const GroupSpec& group) {
  int64_t numel = 0;
  for (const auto& record : group.parameters) {
    numel += record.tensor.numel();
  }
  return numel;
}

/// Every parameter is in one group, whatever the grouping.
void expect_complete(
    const torch::nn::Module& module,
    const std::vector<GroupSpec>& groups) {
  std::set<const void*> seen;
  for (const auto& group : groups) {
    EXPECT_FALSE(group.parameters.empty()) << group.name;
    for (const auto& record : group.parameters) {
      EXPECT_TRUE(seen.insert(record.tensor.unsafeGetTensorImpl()).second)
          << record.name() << " is in two groups";
      EXPECT_EQ(
          record.tensor.scalar_type(),
          group.parameters.front().tensor.scalar_type())
          << group.name;
    }
  }
  EXPECT_EQ(seen.size(), take_parameter_census(module).size());
}

using Names = std::vector<std::string>;

} // namespace

TEST(Grouping, ChildrenOfContainersAreBlocks) {
  struct Net : torch::nn::Module {
    Net() {
      torch::nn::ModuleList layers;
      layers->push_back(Block(4));
      layers->push_back(Block(4));
      register_module("embed", torch::nn::Linear(4, 4));
      register_module("layers", layers);
    }
  } net;
  const auto groups = groups_of(net);
  EXPECT_EQ(names_of(groups), (Names{"embed", "layers.0", "layers.1"}));
  expect_complete(net, groups);
}

TEST(Grouping, SiblingsOfOneTypeAreBlocksAndModulesAroundThemTransparent) {
  struct Encoder : torch::nn::Module {
    Encoder() {
      register_module("a", Block(4));
      register_module("b", Block(4));
      register_parameter("scale", torch::ones({3}));
    }
  };
  struct Net : torch::nn::Module {
    Net() {
      register_module("encoder", std::make_shared<Encoder>());
      register_module("head", torch::nn::Linear(4, 2));
      register_parameter("temperature", torch::ones({1}));
    }
  } net;
  const auto groups = groups_of(net);
  EXPECT_EQ(
      names_of(groups),
      (Names{"root", "encoder", "encoder.a", "encoder.b", "head"}));
  expect_complete(net, groups);
}

TEST(Grouping, BlocksAreNotDivided) {
  struct Outer : torch::nn::Module {
    Outer() {
      register_module("inner0", Block(4));
      register_module("inner1", Block(4));
    }
  };
  torch::nn::ModuleList net;
  net->push_back(std::make_shared<Outer>());
  net->push_back(std::make_shared<Outer>());
  EXPECT_EQ(names_of(groups_of(*net)), (Names{"0", "1"}));
}

TEST(Grouping, LayersOfASequentialAreGroups) {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4));
  EXPECT_EQ(names_of(groups_of(*net)), (Names{"0", "2"}));
}

TEST(Grouping, SmallOnesAreMergedUpToTheMinimum) {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 4), // 20
      torch::nn::Linear(4, 4),
      torch::nn::Linear(40, 40), // 1640
      torch::nn::Linear(4, 4),
      torch::nn::Linear(4, 4));
  const auto groups = groups_of(*net, 50);
  // 20 + 20 are too few still: what follows the large one joins them.
  EXPECT_EQ(names_of(groups), (Names{"0+1+3", "2", "4"}));
  EXPECT_TRUE(groups[0].scattered);
  EXPECT_FALSE(groups[1].scattered);
  expect_complete(*net, groups);
  EXPECT_EQ(groups_of(*net, 1 << 20).size(), 1);
}

TEST(Grouping, TiedParametersFormAGroupOfTheirOwn) {
  struct Tied : torch::nn::Module {
    explicit Tied(const at::Tensor& weight) {
      register_parameter("weight", weight);
      register_parameter("bias", torch::zeros({4}));
    }
  };
  struct Net : torch::nn::Module {
    Net() {
      const auto weight = torch::randn({4, 4});
      const auto embed = std::make_shared<Tied>(weight);
      register_module("embed", embed);
      register_module("middle", torch::nn::Linear(4, 4));
      register_module(
          "head", std::make_shared<Tied>(embed->parameters()[0]));
    }
  } net;
  const auto groups = groups_of(net);
  EXPECT_EQ(
      names_of(groups), (Names{"embed.weight", "embed", "middle", "head"}));
  EXPECT_TRUE(groups[0].scattered);
  EXPECT_EQ(
      groups[0].parameters[0].names, (Names{"embed.weight", "head.weight"}));
  expect_complete(net, groups);
}

TEST(Grouping, SlicesOfOneStorageStayTogether) {
  struct Slice : torch::nn::Module {
    explicit Slice(const at::Tensor& slice) {
      register_parameter("weight", slice);
      register_parameter("bias", torch::zeros({4}));
    }
  };
  torch::nn::ModuleList net;
  const auto big = torch::randn({8, 4});
  net->push_back(std::make_shared<Slice>(big.narrow(0, 0, 4).detach()));
  net->push_back(torch::nn::Linear(4, 4));
  net->push_back(std::make_shared<Slice>(big.narrow(0, 4, 4).detach()));
  const auto groups = groups_of(*net);
  EXPECT_EQ(names_of(groups), (Names{"0.weight", "0", "1", "2"}));
  ASSERT_EQ(groups[0].parameters.size(), 2);
  EXPECT_EQ(groups[0].parameters[1].name(), "2.weight");
  expect_complete(*net, groups);
}

TEST(Grouping, SplitByTypeAndByWhatIsFrozen) {
  torch::nn::ModuleList net;
  Block block(4);
  for (auto& item : block->named_parameters()) {
    if (item.key().rfind("up", 0) == 0) {
      item.value().set_requires_grad(false);
    }
    if (item.key().rfind("norm", 0) == 0) {
      item.value().set_data(item.value().to(torch::kDouble));
    }
  }
  net->push_back(block);
  net->push_back(Block(4));
  const auto groups = groups_of(*net);
  EXPECT_EQ(
      names_of(groups),
      (Names{"0[Double]", "0[Float, frozen]", "0[Float]", "1"}));
  for (const auto& record : groups[1].parameters) {
    EXPECT_FALSE(record.tensor.requires_grad());
  }
  expect_complete(*net, groups);
}

TEST(Grouping, FrozenSliceStaysWithItsTrainableStorage) {
  struct Net : torch::nn::Module {
    Net() {
      const auto big = torch::randn({8});
      register_parameter("a", big.narrow(0, 0, 4).detach());
      register_parameter("b", big.narrow(0, 4, 4).detach(), false);
    }
  } net;
  const auto groups = groups_of(net);
  ASSERT_EQ(groups.size(), 1);
  EXPECT_EQ(groups[0].parameters.size(), 2);
}

TEST(Grouping, NoGroupHoldsMostOfAGpt) {
  struct Transformer : torch::nn::Module {
    Transformer() {
      register_module("wte", torch::nn::Embedding(300, 32));
      register_module("wpe", torch::nn::Embedding(64, 32));
      torch::nn::ModuleList blocks;
      for (int i = 0; i < 12; ++i) {
        blocks->push_back(Block(32));
      }
      register_module("h", blocks);
      register_module(
          "ln_f",
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    }
  };
  struct Gpt : torch::nn::Module {
    Gpt() {
      register_module("transformer", std::make_shared<Transformer>());
      register_module(
          "lm_head",
          torch::nn::Linear(torch::nn::LinearOptions(32, 300).bias(false)));
    }
  } net;
  const auto groups = groups_of(net, 1000);
  int64_t all = 0;
  int64_t largest = 0;
  for (const auto& group : groups) {
    all += numel_of(group);
    largest = std::max(largest, numel_of(group));
  }
  EXPECT_GE(groups.size(), 14);
  EXPECT_LT(largest, all / 8);
  expect_complete(net, groups);
}

TEST(Grouping, SameModelSameGroups) {
  torch::nn::Sequential one(Block(4), Block(8), torch::nn::Linear(4, 4));
  torch::nn::Sequential two(Block(4), Block(8), torch::nn::Linear(4, 4));
  EXPECT_EQ(names_of(groups_of(*one, 100)), names_of(groups_of(*two, 100)));
}

} // namespace tessera

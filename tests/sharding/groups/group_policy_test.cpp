// SPDX-License-Identifier: Apache-2.0
// What a user may say about groups, on models that know nothing of it.
#include "tessera/sharding/groups/grouping.h"

#include "engine/stranger_models.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tessera::sharding::group_policy_test {

namespace {

using Sizes = std::map<std::string, size_t>;

std::vector<GroupSpec> specs_of(
    const torch::nn::Module& module,
    const GroupPolicy& policy) {
  return make_groups(
      module, take_parameter_census(module, policy.ignored), policy);
}

/// Name and number of parameters of each group.
Sizes groups_of(const torch::nn::Module& module, const GroupPolicy& policy) {
  Sizes sizes;
  for (const auto& group : specs_of(module, policy)) {
    sizes[group.name] += group.parameters.size();
  }
  return sizes;
}

/// Sizes as they are, so that every group shows.
GroupPolicy unmerged() {
  GroupPolicy policy;
  policy.min_group_numel = 0;
  return policy;
}

// A vocabulary of 29, width 12 and two blocks of 2 x 2 + 2 x 2 + 4 parameters.
// A block has 1884 elements.
strangers::Gpt gpt() {
  return strangers::Gpt(29, 12, 2, 8);
}

/// Two experts inside of each layer, and an embedding inside of a front part.
struct ExpertLayerImpl : torch::nn::Module {
  ExpertLayerImpl() {
    register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_module(
        "experts",
        torch::nn::ModuleList(
            torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)));
  }
};
TORCH_MODULE(ExpertLayer);

struct FrontImpl : torch::nn::Module {
  FrontImpl() {
    register_module("words", torch::nn::Embedding(40, 4));
    register_module("positions", torch::nn::Embedding(5, 4));
    register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  }
};
TORCH_MODULE(Front);

struct SparseModel : torch::nn::Module {
  SparseModel() {
    register_module("front", Front());
    register_module(
        "layers", torch::nn::ModuleList(ExpertLayer(), ExpertLayer()));
    register_module("head", torch::nn::Linear(4, 40));
    register_module("pooler", torch::nn::Linear(4, 4));
  }
};

} // namespace

TEST(GroupPolicy, BlocksByTypeName) {
  const Sizes whole_blocks{
      {"wte", 1},
      {"wpe", 1},
      {"h.0", 12},
      {"h.1", 12},
      {"ln_f", 2},
      {"lm_head", 1}};
  for (const char* name : {"GptBlock", "GptBlockImpl", "strangers::GptBlock"}) {
    auto policy = unmerged();
    policy.block_types = {name};
    EXPECT_EQ(groups_of(*gpt(), policy), whole_blocks) << name;
  }
  // Only a whole name, and only at a "::".
  for (const char* name : {"Block", "gpt::GptBlock", "GptBloc"}) {
    auto policy = unmerged();
    policy.block_types = {name};
    expect_error(
        [&] { groups_of(*gpt(), policy); },
        {"block_types", name, "nearest", "strangers::GptBlockImpl"});
  }
}

TEST(GroupPolicy, NamedBlocksReplaceTheDefaultRule) {
  auto policy = unmerged();
  policy.block_types = {"Sequential"}; // the multilayer perceptrons only
  const Sizes expected{
      {"wte", 1},
      {"wpe", 1},
      {"h.0.ln_1", 2},
      {"h.0.c_attn", 2},
      {"h.0.c_proj", 2},
      {"h.0.ln_2", 2},
      {"h.0.mlp", 4},
      {"h.1.ln_1", 2},
      {"h.1.c_attn", 2},
      {"h.1.c_proj", 2},
      {"h.1.ln_2", 2},
      {"h.1.mlp", 4},
      {"ln_f", 2},
      {"lm_head", 1}};
  EXPECT_EQ(groups_of(*gpt(), policy), expected);
}

TEST(GroupPolicy, BlocksByPathMatchAsAWhole) {
  auto policy = unmerged();
  policy.block_paths = {R"(layers\.\d+\.experts\.\d+)", R"(layers\.\d+)"};
  const Sizes expected{
      {"front", 4},
      {"layers.0", 2}, // what its experts leave
      {"layers.0.experts.0", 2},
      {"layers.0.experts.1", 2},
      {"layers.1", 2},
      {"layers.1.experts.0", 2},
      {"layers.1.experts.1", 2},
      {"head", 2},
      {"pooler", 2}};
  EXPECT_EQ(groups_of(SparseModel(), policy), expected);
  policy.block_paths = {"layers"};
  EXPECT_EQ(groups_of(SparseModel(), policy).at("layers"), 12);
}

TEST(GroupPolicy, BlocksByPredicate) {
  auto policy = unmerged();
  policy.is_block = [](const std::string& path, const torch::nn::Module& part) {
    return path == "head" || part.as<ExpertLayer>() != nullptr;
  };
  const Sizes expected{
      {"front", 4},
      {"layers.0", 6},
      {"layers.1", 6},
      {"head", 2},
      {"pooler", 2}};
  EXPECT_EQ(groups_of(SparseModel(), policy), expected);
}

TEST(GroupPolicy, NamedBlocksAreNotCollectedWithSmallOnes) {
  auto policy = unmerged();
  policy.min_group_numel = 10'000;
  policy.block_types = {"GptBlock"};
  const Sizes expected{{"h.0", 12}, {"h.1", 12}, {"wte+wpe+ln_f+lm_head", 5}};
  EXPECT_EQ(groups_of(*gpt(), policy), expected);
}

TEST(GroupPolicy, NeighboursMergeUpToASize) {
  auto policy = unmerged();
  policy.max_group_numel = 372; // the norm's 24 and the head's 348
  const Sizes small{
      {"wte", 1}, {"wpe", 1}, {"h.0", 12}, {"h.1", 12}, {"ln_f+lm_head", 3}};
  EXPECT_EQ(groups_of(*gpt(), policy), small);
  policy.max_group_numel = 2 * 1884;
  const Sizes large{{"wte+wpe+h.0", 14}, {"h.1+ln_f+lm_head", 15}};
  EXPECT_EQ(groups_of(*gpt(), policy), large);
  for (const auto& group : specs_of(*gpt(), policy)) {
    EXPECT_FALSE(group.scattered) << group.name;
  }
}

TEST(GroupPolicy, VocabularyApart) {
  auto policy = unmerged();
  policy.min_group_numel = 90;
  policy.vocabulary_apart = true;
  // Words and head have 160 elements or more; the 20 of the positions are not
  // worth a group.
  const Sizes expected{
      {"front.words", 1},
      {"front+layers.0+layers.1", 15},
      {"head", 2},
      {"pooler", 2}};
  EXPECT_EQ(groups_of(SparseModel(), policy), expected);
  // They take nothing in, however much room there is.
  policy.max_group_numel = 1'000'000;
  const Sizes merged{
      {"front+pooler", 5},
      {"front.words", 1},
      {"layers.0+layers.1", 12},
      {"head", 2}};
  EXPECT_EQ(groups_of(SparseModel(), policy), merged);
}

TEST(GroupPolicy, ATiedVocabularyIsOneGroup) {
  struct Tied : torch::nn::Module {
    Tied() {
      const auto front = register_module("front", Front());
      const auto head = register_module("head", Front());
      head->unregister_module("words");
      head->register_module("words", front->children()[0]);
    }
  };
  auto policy = unmerged();
  policy.min_group_numel = 100;
  policy.vocabulary_apart = true;
  const Sizes expected{{"front.words.weight", 1}, {"front+head", 6}};
  EXPECT_EQ(groups_of(Tied(), policy), expected);
}

TEST(GroupPolicy, ReshardRulesLandInTheGroups) {
  auto policy = unmerged();
  policy.reshard_after_forward = {
      {R"(h\.1)", false}, {"h", true}, {"lm_head", false}};
  std::map<std::string, std::optional<bool>> got;
  for (const auto& group : specs_of(*gpt(), policy)) {
    got[group.name] = group.reshard_after_forward;
  }
  const std::map<std::string, std::optional<bool>> expected{
      {"wte", std::nullopt},
      {"wpe", std::nullopt},
      {"h.0", true},
      {"h.1", false}, // the first rule that matches
      {"ln_f", std::nullopt},
      {"lm_head", false}};
  EXPECT_EQ(got, expected);
}

TEST(GroupPolicy, OnlyGroupsOfOneRuleMerge) {
  auto policy = unmerged();
  policy.min_group_numel = 1'000'000;
  policy.reshard_after_forward = {{R"(h\.1|ln_f)", false}};
  const Sizes expected{{"wte+wpe+h.0+lm_head", 15}, {"h.1+ln_f", 14}};
  EXPECT_EQ(groups_of(*gpt(), policy), expected);
  policy.max_group_numel = 1'000'000;
  EXPECT_EQ(groups_of(*gpt(), policy), expected);
}

TEST(GroupPolicy, IgnoredOnesAreInNoGroup) {
  auto policy = unmerged();
  policy.ignored.paths = {R"(layers\.1)", R"(front\.norm\.bias)"};
  policy.ignored.modules = [](const std::string& path,
                              const torch::nn::Module& /*part*/) {
    return path == "pooler";
  };
  const Sizes expected{{"front", 3}, {"layers.0", 6}, {"head", 2}};
  EXPECT_EQ(groups_of(SparseModel(), policy), expected);
}

TEST(GroupPolicy, IgnoredOnesMayBeAnything) {
  strangers::Gpt model = gpt();
  model->wpe->register_parameter("odd", torch::eye(12).to_sparse());
  auto policy = unmerged();
  expect_error([&] { groups_of(*model, policy); }, {"wpe.odd", "Sparse"});
  policy.ignored.paths = {"wpe"};
  EXPECT_EQ(groups_of(*model, policy).count("wpe"), 0);
}

TEST(GroupPolicy, WhatIsIgnoredInOnePlaceIsNotUsedInAnother) {
  torch::nn::Sequential model(
      torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::ReLU());
  auto first = model->ptr<torch::nn::LinearImpl>(0);
  model->ptr<torch::nn::LinearImpl>(1)->register_parameter(
      "tied", first->weight);
  auto policy = unmerged();
  policy.ignored.paths = {"0"};
  expect_error(
      [&] { groups_of(*model, policy); },
      {"'0.weight'", "'1.tied'", "Ignore both"});
  policy.ignored.paths = {"0", R"(1\.tied)"};
  EXPECT_EQ(groups_of(*model, policy), (Sizes{{"1", 2}}));
  policy.ignored.paths = {R"(\d)"};
  expect_error([&] { groups_of(*model, policy); }, {"all of them are ignored"});
}

TEST(GroupPolicy, RulesThatMatchNothingNameTheNearest) {
  auto policy = unmerged();
  policy.block_paths = {R"(layer\.\d+)"};
  expect_error(
      [&] { groups_of(SparseModel(), policy); },
      {"block_paths", R"('layer\.\d+')", "'layers.0'"});
  policy = unmerged();
  policy.ignored.paths = {"front.word"};
  expect_error(
      [&] { groups_of(SparseModel(), policy); },
      {"ignored.paths", "'front.word'", "'front.words'"});
  policy = unmerged();
  policy.reshard_after_forward = {{"heads", false}};
  expect_error(
      [&] { groups_of(SparseModel(), policy); },
      {"reshard_after_forward", "'heads'", "'head'"});
}

TEST(GroupPolicy, BadValuesAreRefused) {
  const auto refused = [](const GroupPolicy& policy,
                          std::initializer_list<const char*> parts) {
    expect_error([&] { check_group_policy(policy); }, parts);
  };
  auto policy = unmerged();
  policy.min_group_numel = -1;
  refused(policy, {"min_group_numel", "-1"});
  policy = {};
  policy.max_group_numel = 5;
  refused(policy, {"max_group_numel is 5", "100000"});
  policy = {};
  policy.block_paths = {"layer.(\\d"};
  refused(
      policy, {"block_paths", "layer.(\\d", "not a valid regular expression"});
  policy = {};
  policy.block_types = {""};
  refused(policy, {"block_types", "empty"});
  policy = {};
  policy.reshard_after_forward = {{"[", true}};
  refused(policy, {"reshard_after_forward", "'['"});
}

} // namespace tessera::sharding::group_policy_test

// SPDX-License-Identifier: Apache-2.0
// What a user may say about groups, on models that know nothing of it.
#include "tessera/sharding/pages/grouping.h"

#include "engine/stranger_models.h"
#include "sharding/pages/grouped.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tessera::sharding::group_policy_test {

namespace {

using Sizes = std::map<std::string, size_t>;

using Rules = std::vector<ModuleRule>;

/// A rule that makes a group of everything that matches.
ModuleRule group(const std::string& path) {
  return {.path = path, .options = {.group = true}};
}

ModuleRule group_of_type(const std::string& type) {
  return {.type = type, .options = {.group = true}};
}

ModuleRule reshard(const std::string& path, bool after_forward) {
  return {.path = path, .options = {.reshard_after_forward = after_forward}};
}

ModuleRule ignored(const std::string& path) {
  return {.path = path, .options = {.ignored = true}};
}

/// Name and number of parameters of each group.
Sizes groups_of(
    const torch::nn::Module& module,
    const GroupPolicy& policy,
    const Rules& rules = {}) {
  Sizes sizes;
  for (const auto& group : tests::grouped(module, policy, rules)) {
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
  const Sizes full_blocks{
      {"wte", 1},
      {"wpe", 1},
      {"h.0", 12},
      {"h.1", 12},
      {"ln_f", 2},
      {"lm_head", 1}};
  for (const char* name : {"GptBlock", "GptBlockImpl", "strangers::GptBlock"}) {
    EXPECT_EQ(groups_of(*gpt(), unmerged(), {group_of_type(name)}), full_blocks)
        << name;
  }
  // Only a whole name, and only at a "::".
  for (const char* name : {"Block", "gpt::GptBlock", "GptBloc"}) {
    expect_error(
        [&] { groups_of(*gpt(), unmerged(), {group_of_type(name)}); },
        {"sharding.modules", name, "nearest", "strangers::GptBlockImpl"});
  }
}

TEST(GroupPolicy, NamedBlocksReplaceTheDefaultRule) {
  // The multilayer perceptrons only.
  const Rules rules{group_of_type("Sequential")};
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
  EXPECT_EQ(groups_of(*gpt(), unmerged(), rules), expected);
}

TEST(GroupPolicy, BlocksByPathMatchAsAWhole) {
  const Rules rules{
      group(R"(layers\.\d+\.experts\.\d+)"), group(R"(layers\.\d+)")};
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
  EXPECT_EQ(groups_of(SparseModel(), unmerged(), rules), expected);
  EXPECT_EQ(
      groups_of(SparseModel(), unmerged(), {group("layers")}).at("layers"), 12);
}

TEST(GroupPolicy, AParameterCanBeAGroup) {
  const Rules rules{group(R"(h\.1\.ln_1\.weight)")};
  auto policy = unmerged();
  policy.min_group_numel = 1'000'000;
  // The blocks are those of the default rule.
  const Sizes expected{
      {"h.1.ln_1.weight", 1}, {"wte+wpe+h.0+h.1+ln_f+lm_head", 28}};
  EXPECT_EQ(groups_of(*gpt(), policy, rules), expected);
  // Not those of a module that matches too.
  EXPECT_EQ(groups_of(*gpt(), unmerged(), {group("ln_f.*")}).at("ln_f"), 2);
}

TEST(GroupPolicy, ACallMakesAGroup) {
  const SparseModel model;
  const auto modules = model.named_modules("", false);
  configure(*modules["front.words"], {.group = true});
  configure(*modules["head"], {.group = true, .zero_stage = 2});
  configure(*modules["layers"], {.reshard_after_forward = false});
  const Sizes expected{
      {"front.words", 1}, // the front contains a block: it is none
      {"front.positions", 1},
      {"front.norm", 2},
      {"layers.0", 6},
      {"layers.1", 6},
      {"head", 2},
      {"pooler", 2}};
  EXPECT_EQ(groups_of(model, unmerged()), expected);
  for (const PageSpec& spec : tests::grouped(model, unmerged())) {
    const bool in_layers = spec.name.starts_with("layers");
    EXPECT_EQ(
        spec.reshard_after_forward,
        in_layers ? std::optional(false) : std::nullopt);
    EXPECT_EQ(
        spec.zero_stage, spec.name == "head" ? std::optional(2) : std::nullopt);
  }
  // They are not collected with small ones.
  auto policy = unmerged();
  policy.min_group_numel = 10'000;
  EXPECT_EQ(groups_of(model, policy).at("head"), 2);
  // A rule comes first, and of the rules the first.
  const Rules rules{
      {.path = "head", .options = {.zero_stage = 1}},
      {.path = "head|front", .options = {.zero_stage = 3}}};
  for (const PageSpec& spec : tests::grouped(model, unmerged(), rules)) {
    if (spec.name == "head" || spec.name.starts_with("front")) {
      EXPECT_EQ(spec.zero_stage, spec.name == "head" ? 1 : 3) << spec.name;
    }
  }
  // The last call counts.
  configure(*modules["head"], {});
  for (const PageSpec& spec : tests::grouped(model, unmerged())) {
    EXPECT_EQ(spec.zero_stage, std::nullopt) << spec.name;
  }
  // In another model nothing was chosen.
  EXPECT_EQ(groups_of(SparseModel(), unmerged()).at("front"), 4);
}

TEST(GroupPolicy, ACallIsForgottenWithItsModule) {
  using Linear = torch::nn::LinearImpl;
  auto first = std::shared_ptr<Linear>(new Linear(3, 3)); // NOLINT(*-make-*)
  configure(*first, {.group = true});
  EXPECT_TRUE(configured_options(*first));
  const Linear* const address = first.get();
  first.reset();
  std::vector<std::shared_ptr<Linear>> others;
  do {
    others.emplace_back(new Linear(3, 3));
  } while (others.back().get() != address && others.size() < 1000);
  EXPECT_EQ(others.back().get(), address);
  EXPECT_FALSE(configured_options(*others.back()));
}

TEST(GroupPolicy, ChoicesForGroupsThatAreNoneAreErrors) {
  const SparseModel model;
  const auto layer = model.named_modules("", false)["layers.0.norm"];
  configure(*layer, {.zero_stage = 2});
  expect_error(
      [&] { groups_of(model, unmerged()); },
      {"configure: 'layers.0.norm'", "set ModuleOptions::group"});
  configure(*layer, {});
  expect_error(
      [&] {
        groups_of(model, unmerged(), {reshard(R"(layers\.0\.norm)", false)});
      },
      {R"('layers\.0\.norm')", "matches no group", "set group too"});
  expect_error(
      [&] { configure(*layer, {.zero_stage = 4}); },
      {"configure: zero_stage", "is 4", "1, 2 or 3"});
  expect_error([&] { configure(model, {}); }, {"not owned by a shared_ptr"});
}

TEST(GroupPolicy, NamedBlocksAreNotCollectedWithSmallOnes) {
  auto policy = unmerged();
  policy.min_group_numel = 10'000;
  const Sizes expected{{"h.0", 12}, {"h.1", 12}, {"wte+wpe+ln_f+lm_head", 5}};
  EXPECT_EQ(groups_of(*gpt(), policy, {group_of_type("GptBlock")}), expected);
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
  for (const auto& group : tests::grouped(*gpt(), policy)) {
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
  const Rules rules{
      reshard(R"(h\.1)", false), reshard("h", true), reshard("lm_head", false)};
  std::map<std::string, std::optional<bool>> got;
  for (const auto& group : tests::grouped(*gpt(), unmerged(), rules)) {
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
  const Rules rules{reshard(R"(h\.1|ln_f)", false)};
  const Sizes expected{{"wte+wpe+h.0+lm_head", 15}, {"h.1+ln_f", 14}};
  EXPECT_EQ(groups_of(*gpt(), policy, rules), expected);
  policy.max_group_numel = 1'000'000;
  EXPECT_EQ(groups_of(*gpt(), policy, rules), expected);
}

TEST(GroupPolicy, IgnoredOnesAreInNoGroup) {
  const SparseModel model;
  configure(*model.named_modules("", false)["pooler"], {.ignored = true});
  const Rules rules{ignored(R"(layers\.1)"), ignored(R"(front\.norm\.bias)")};
  const Sizes expected{{"front", 3}, {"layers.0", 6}, {"head", 2}};
  EXPECT_EQ(groups_of(model, unmerged(), rules), expected);
}

TEST(GroupPolicy, IgnoredOnesMayBeAnything) {
  strangers::Gpt model = gpt();
  model->wpe->register_parameter("odd", torch::eye(12).to_sparse());
  expect_error([&] { groups_of(*model, unmerged()); }, {"wpe.odd", "Sparse"});
  EXPECT_EQ(groups_of(*model, unmerged(), {ignored("wpe")}).count("wpe"), 0);
}

TEST(GroupPolicy, WhatIsIgnoredInOnePlaceIsNotUsedInAnother) {
  torch::nn::Sequential model(
      torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::ReLU());
  auto first = model->ptr<torch::nn::LinearImpl>(0);
  model->ptr<torch::nn::LinearImpl>(1)->register_parameter(
      "tied", first->weight);
  expect_error(
      [&] { groups_of(*model, unmerged(), {ignored("0")}); },
      {"'0.weight'", "'1.tied'", "Ignore both"});
  EXPECT_EQ(
      groups_of(*model, unmerged(), {ignored("0"), ignored(R"(1\.tied)")}),
      (Sizes{{"1", 2}}));
  expect_error(
      [&] { groups_of(*model, unmerged(), {ignored(R"(\d)")}); },
      {"all of them are ignored"});
}

TEST(GroupPolicy, RulesThatMatchNothingNameTheNearest) {
  const auto refused = [](const ModuleRule& rule,
                          std::initializer_list<const char*> parts) {
    expect_error([&] { groups_of(SparseModel(), unmerged(), {rule}); }, parts);
  };
  refused(
      group(R"(layer\.\d+)"),
      {"sharding.modules", R"('layer\.\d+')", "'layers.0'"});
  refused(ignored("front.word"), {"'front.word'", "'front.words'"});
  refused(reshard("heads", false), {"'heads'", "'head'"});
  // Parameters too.
  refused(group(R"(head\.biases)"), {R"('head\.biases')", "'head.bias'"});
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
  const auto refused_rule = [](const ModuleRule& rule,
                               std::initializer_list<const char*> parts) {
    expect_error([&] { check_module_rules({rule}); }, parts);
  };
  refused_rule(
      group("layer.(\\d"),
      {"sharding.modules", "layer.(\\d", "not a valid regular expression"});
  refused_rule({}, {"sharding.modules", "neither path nor type"});
  refused_rule({"a", "B", {}}, {"path 'a' and type 'B'"});
}

} // namespace tessera::sharding::group_policy_test

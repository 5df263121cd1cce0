// SPDX-License-Identifier: Apache-2.0
// However parameters are grouped, the numbers are the same.
#include "engine/parity_subjects.h"
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::engine::group_policy_parity_test {

namespace {

using namespace tests;

template <typename Model>
void expect_parity_with(
    const Subject<Model>& subject,
    const GroupPolicy& policy,
    const std::string& label,
    const std::vector<ModuleRule>& rules = {}) {
  run_ranks(2, [&](World& world) {
    auto options = parity_options(world, 0);
    options.steps = 4;
    options.engine.sharding.groups = policy;
    options.engine.sharding.modules = rules;
    expect_parity(world, subject, options, label);
  });
}

} // namespace

TEST(GroupPolicyParity, NamedBlocks) {
  GroupPolicy policy;
  policy.min_group_numel = 0;
  const ModuleOptions group{.group = true};
  expect_parity_with(
      kGpt,
      policy,
      "blocks inside of blocks",
      {{.type = "GptBlock", .options = group},
       {.type = "Sequential", .options = group}});
  expect_parity_with(
      kResNet,
      policy,
      "whole stages",
      {{.path = R"(layer\d)", .options = group}});
}

TEST(GroupPolicyParity, MergedNeighboursAndVocabularyApart) {
  GroupPolicy policy;
  policy.min_group_numel = 200;
  policy.max_group_numel = 4000;
  policy.vocabulary_apart = true;
  expect_parity_with(kGpt, policy, "merged");
}

TEST(GroupPolicyParity, IgnoredParametersStayTheCallers) {
  run_ranks(2, [](World& /*world*/) {
    auto options = group_per_layer();
    options.sharding.modules = {
        {.path = R"(first|block1\.up\.bias)", .options = {.ignored = true}}};
    const auto plain = make_net<StackImpl>();
    const auto wrapped = make_net<StackImpl>();
    std::vector<at::Tensor> local = wrapped->first->parameters();
    local.push_back(wrapped->blocks[1]->up->bias);
    Twin<StackImpl> twin(plain, wrapped, options);
    torch::optim::AdamW own_optimizer(
        local, torch::optim::AdamWOptions(options.optimizer.lr));
    for (int step = 0; step < 3; ++step) {
      // The same batch on both ranks: nobody averages the ignored gradients.
      const auto x = batch_of(step, 0);
      twin.plain->forward(x).square().mean().backward();
      twin.engine.backward(twin.wrapped->forward(x).square().mean());
      twin.step();
      own_optimizer.step();
      own_optimizer.zero_grad();
    }
    twin.expect_same_parameters();
    const auto expected = twin.plain->named_parameters();
    for (const char* name : {"first.weight", "first.bias", "block1.up.bias"}) {
      const at::Tensor value = wrapped->named_parameters()[name];
      EXPECT_EQ(value.storage().nbytes(), value.nbytes());
      EXPECT_TRUE(torch::allclose(value, expected[name], 1e-9, 1e-11)) << name;
    }
  });
}

} // namespace tessera::engine::group_policy_parity_test

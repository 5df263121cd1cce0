// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/expert_parallel/expert_router.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/expert_parallel/router_losses.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace tessera::sharding::expert_router_test {

namespace {

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

at::Tensor integers(std::vector<std::vector<int64_t>> rows) {
  std::vector<at::Tensor> all;
  for (const auto& row : rows) {
    all.push_back(torch::tensor(row));
  }
  return torch::stack(all);
}

} // namespace

TEST(ExpertRouter, TakesTheBestAndTheFirstOfEqualOnes) {
  const at::Tensor logits = torch::log(torch::tensor(
      {{0.1, 0.2, 0.3, 0.4}, {0.25, 0.25, 0.25, 0.25}}, at::kDouble));
  const ExpertRouting routing = route_tokens(logits, {.experts_per_token = 2});
  EXPECT_TRUE(routing.experts.equal(integers({{3, 2}, {0, 1}})));
  EXPECT_TRUE(routing.weights.allclose(
      torch::tensor({{0.4, 0.3}, {0.25, 0.25}}, at::kDouble)));
  EXPECT_FALSE(routing.kept.defined());
  const ExpertRouting even =
      route_tokens(logits, {.experts_per_token = 2, .normalise = true});
  EXPECT_TRUE(even.weights.allclose(
      torch::tensor({{4.0 / 7, 3.0 / 7}, {0.5, 0.5}}, at::kDouble)));
}

TEST(ExpertRouter, GradientsAreThoseOfTheSoftmax) {
  const at::Tensor logits = numbers({7, 5}, 1).requires_grad_();
  const at::Tensor outer = numbers({7, 2}, 2);
  const ExpertRouting routing =
      route_tokens(logits, {.experts_per_token = 2, .normalise = true});
  (routing.weights * outer).sum().backward();
  const at::Tensor twin = logits.detach().clone().requires_grad_();
  // A softmax over the chosen ones only.
  const at::Tensor weights =
      torch::softmax(twin.gather(1, routing.experts), -1);
  (weights * outer).sum().backward();
  EXPECT_TRUE(logits.grad().allclose(twin.grad(), 1e-12, 1e-14));
}

// Experts take two choices each: first choices before second ones, earlier
// tokens before later ones.
TEST(ExpertRouter, CapacityKeepsFirstChoicesFirst) {
  const at::Tensor logits = torch::tensor(
      {{3.0, 2.0, 0.0}, {2.0, 3.0, 0.0}, {3.0, 2.0, 0.0}, {3.0, 0.0, 2.0}});
  const RouterOptions options{2, false, 0.75};
  EXPECT_EQ(expert_capacity(4, 3, options), 2);
  const ExpertRouting routing = route_tokens(logits, options);
  // Expert 0 is the first choice of tokens 0, 2 and 3; expert 1 that of token 1
  // and the second one of tokens 0 and 2.
  const at::Tensor expected =
      torch::tensor({1, 1, 1, 0, 1, 0, 0, 1}).view({4, 2}).to(at::kBool);
  EXPECT_TRUE(routing.kept.equal(expected)) << routing.kept;
  EXPECT_EQ(expert_capacity(1, 64, {1, false, 1.0}), 1);
  EXPECT_EQ(expert_capacity(8, 3, {1, false, 1.0}), 3);
  EXPECT_TRUE(route_tokens(logits, {2, false, 100.0}).kept.all().item<bool>());
}

TEST(ExpertRouter, ChecksItsOptions) {
  expect_error([] { check({.experts_per_token = 0}, 4); }, {"uses 0 of 4"});
  expect_error([] { check({.experts_per_token = 5}, 4); }, {"uses 5 of 4"});
  for (const double factor :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    expect_error([&] { check({1, false, factor}, 4); }, {"capacity factor"});
  }
  expect_error(
      [] { route_tokens(torch::zeros({4}), {}); }, {"[tokens, experts]"});
}

// Against the formulas, written out.
TEST(RouterLosses, AreThePublishedOnes) {
  const at::Tensor logits = numbers({9, 4}, 3).requires_grad_();
  const ExpertRouting routing = route_tokens(logits, {.experts_per_token = 2});
  const at::Tensor counts = torch::tensor({1, 1, 0, 1, 1, 1, 0, 1, 1});
  const at::Tensor there = counts.nonzero().flatten();
  for (const bool all : {true, false}) {
    const RouterSums sums =
        router_sums(logits, routing, all ? at::Tensor() : counts);
    const at::Tensor some = all ? logits : logits.index_select(0, there);
    const at::Tensor chosen =
        all ? routing.experts : routing.experts.index_select(0, there);
    at::Tensor balance = torch::zeros({}, at::kDouble);
    for (int64_t e = 0; e < 4; ++e) {
      balance = balance + chosen.eq(e).sum(1).to(at::kDouble).mean() *
                              torch::softmax(some, -1).select(1, e).mean();
    }
    EXPECT_TRUE(load_balancing_loss(sums).allclose(4 * balance, 1e-12));
    const at::Tensor z = torch::logsumexp(some, 1).pow(2).mean();
    EXPECT_TRUE(router_z_loss(sums).allclose(z, 1e-12));
    const auto found = torch::autograd::grad(
        {load_balancing_loss(sums) + router_z_loss(sums)}, {logits});
    const auto expected = torch::autograd::grad({4 * balance + z}, {logits});
    EXPECT_TRUE(found[0].allclose(expected[0], 1e-12, 1e-14));
  }
}

TEST(RouterLosses, OfManyLayersAreThoseOfAllTheirTokens) {
  const at::Tensor logits = numbers({12, 4}, 3);
  const RouterOptions options{.experts_per_token = 2};
  std::vector<RouterSums> parts{RouterSums{}};
  for (const at::Tensor& part : logits.split(5)) {
    parts.push_back(router_sums(part, route_tokens(part, options)));
  }
  const RouterSums full = router_sums(logits, route_tokens(logits, options));
  EXPECT_TRUE(load_balancing_loss(total(parts))
                  .allclose(load_balancing_loss(full), 1e-12));
  EXPECT_TRUE(router_z_loss(total(parts)).allclose(router_z_loss(full), 1e-12));
}

// Ranks with different numbers of tokens: the losses are those of all tokens,
// and gradients that are averaged over the ranks are theirs.
TEST(RouterLosses, OverRanksAreThoseOfOne) {
  tests::run_ranks(3, [](World& world) {
    const auto group = world.new_communicator("gradients");
    const RouterOptions options{.experts_per_token = 2};
    const at::Tensor router = numbers({6, 4}, 1).requires_grad_();
    const at::Tensor tokens = numbers({12, 6}, 2);
    constexpr int64_t kBegins[] = {0, 2, 7, 12};
    const auto loss = [&](const at::Tensor& some, Communicator* over) {
      const at::Tensor logits = some.matmul(router);
      RouterSums sums = router_sums(logits, route_tokens(logits, options));
      if (over != nullptr) {
        sums = total_over_group(sums, *over);
      }
      return load_balancing_loss(sums) + 0.1 * router_z_loss(sums);
    };
    const at::Tensor full = loss(tokens, nullptr);
    const at::Tensor expected = torch::autograd::grad({full}, {router})[0];
    const int64_t begin = kBegins[world.rank()];
    const at::Tensor local = loss(
        tokens.narrow(0, begin, kBegins[world.rank() + 1] - begin),
        group.get());
    EXPECT_TRUE(local.allclose(full, 1e-12));
    const at::Tensor gradient = torch::autograd::grad({local}, {router})[0];
    group->all_reduce_sum(gradient, "a test's sum").wait();
    EXPECT_TRUE((gradient / 3).allclose(expected, 1e-11, 1e-13));
  });
}

} // namespace tessera::sharding::expert_router_test

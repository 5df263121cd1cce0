// SPDX-License-Identifier: Apache-2.0
// Experts over ranks against all of them on one.
#include "tessera/sharding/expert_parallel/expert_exchange.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <vector>

namespace tessera::sharding::expert_exchange_test {

namespace {

constexpr int64_t kExperts = 4;
constexpr int64_t kFeatures = 6;

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

/// The same on all ranks.
struct Weights {
  at::Tensor router = numbers({kFeatures, kExperts}, 1).requires_grad_();
  /// Of all experts; expert e computes tanh(x w_e).
  at::Tensor experts =
      numbers({kExperts, kFeatures, kFeatures}, 2).requires_grad_();
};

/// Each token by itself, expert by expert.
at::Tensor one_by_one(
    const at::Tensor& tokens,
    const ExpertRouting& routing,
    const at::Tensor& experts) {
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    at::Tensor row = torch::zeros({kFeatures}, at::kDouble);
    for (int64_t k = 0; k < routing.experts.size(1); ++k) {
      if (!routing.kept.defined() || routing.kept[t][k].item<bool>()) {
        const int64_t e = routing.experts[t][k].item<int64_t>();
        row = row +
              routing.weights[t][k] * torch::tanh(tokens[t].matmul(experts[e]));
      }
    }
    rows.push_back(row);
  }
  return rows.empty() ? tokens : torch::stack(rows);
}

/// Of several ranks the first one has none.
int64_t tokens_of(int rank, int ranks) {
  return ranks == 1 ? 7 : rank * rank + 2 * rank;
}

void expect_parity(World& world, Communicator& group, RouterOptions options) {
  const int ranks = world.size();
  int64_t begin = 0;
  int64_t all = 0;
  for (int r = 0; r < ranks; ++r) {
    begin += r < world.rank() ? tokens_of(r, ranks) : 0;
    all += tokens_of(r, ranks);
  }
  const int64_t own = tokens_of(world.rank(), ranks);
  const at::Tensor tokens = numbers({all, kFeatures}, 3);
  const at::Tensor outer = numbers({all, kFeatures}, 4);

  // One rank: the mean over the ranks of what each would have computed.
  const Weights full;
  const at::Tensor x = tokens.clone().requires_grad_();
  at::Tensor loss = torch::zeros({}, at::kDouble);
  at::Tensor expected;
  int64_t place = 0;
  for (int r = 0; r < ranks; ++r) {
    const at::Tensor part = x.narrow(0, place, tokens_of(r, ranks));
    const at::Tensor result = one_by_one(
        part, route_tokens(part.matmul(full.router), options), full.experts);
    loss = loss +
           (result * outer.narrow(0, place, tokens_of(r, ranks))).sum() / ranks;
    if (r == world.rank()) {
      expected = result;
    }
    place += tokens_of(r, ranks);
  }
  loss.backward();

  const Weights self_weights;
  const at::Tensor local_tokens =
      tokens.narrow(0, begin, own).clone().requires_grad_();
  const ExpertRange range = local_experts(kExperts, world.rank(), ranks);
  const at::Tensor result = apply_experts(
      local_tokens,
      route_tokens(local_tokens.matmul(self_weights.router), options),
      kExperts,
      &group,
      [&](int64_t local, const at::Tensor& rows) {
        return torch::tanh(
            rows.matmul(self_weights.experts[range.begin + local]));
      });
  // Float64; sums of some tens of products of numbers of size 1.
  constexpr double kTolerance = 1e-12;
  EXPECT_TRUE(result.allclose(expected, kTolerance, kTolerance));
  (result * outer.narrow(0, begin, own)).sum().backward();
  EXPECT_TRUE(
      (local_tokens.grad() / ranks)
          .allclose(x.grad().narrow(0, begin, own), kTolerance, kTolerance));
  EXPECT_TRUE(self_weights.experts.grad()
                  .narrow(0, range.begin, range.length)
                  .allclose(
                      full.experts.grad().narrow(0, range.begin, range.length),
                      kTolerance,
                      kTolerance));
  const at::Tensor router = self_weights.router.grad();
  group.all_reduce_sum(router, "a test's sum").wait();
  EXPECT_TRUE(
      (router / ranks).allclose(full.router.grad(), kTolerance, kTolerance));
}

} // namespace

TEST(ExpertExchange, IsAsOnOneRank) {
  for (const int ranks : {1, 2, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      const auto group = world.new_communicator("expert");
      for (const int64_t k : {1, 2, 4}) {
        for (const bool normalise : {false, true}) {
          SCOPED_TRACE(::testing::Message() << k << " " << normalise);
          expect_parity(world, *group, {k, normalise, {}});
          // Some are dropped; what is, each rank's tokens decide.
          expect_parity(world, *group, {k, normalise, 0.6});
        }
      }
    });
  }
}

TEST(ExpertExchange, WithoutAGroupAllExpertsAreHere) {
  const Weights weights;
  const at::Tensor tokens = numbers({9, kFeatures}, 3);
  const ExpertRouting routing =
      route_tokens(tokens.matmul(weights.router), {.experts_per_token = 2});
  const at::Tensor result = apply_experts(
      tokens,
      routing,
      kExperts,
      nullptr,
      [&](int64_t e, const at::Tensor& rows) {
        return torch::tanh(rows.matmul(weights.experts[e]));
      });
  EXPECT_TRUE(result.allclose(
      one_by_one(tokens, routing, weights.experts), 1e-12, 1e-12));
}

// All tokens choose the same expert: the others, and their ranks, get none.
TEST(ExpertExchange, ExpertsWithoutTokensTakePart) {
  tests::run_ranks(2, [](World& world) {
    const auto group = world.new_communicator("expert");
    const at::Tensor tokens = numbers({5, kFeatures}, 3).requires_grad_();
    const at::Tensor logits =
        torch::tensor({9.0, 0.0, 0.0, 0.0}, at::kDouble).expand({5, kExperts});
    const at::Tensor scales = torch::ones({2}, at::kDouble).requires_grad_();
    const at::Tensor result = apply_experts(
        tokens,
        route_tokens(logits, {}),
        kExperts,
        group.get(),
        [&](int64_t local, const at::Tensor& rows) {
          EXPECT_EQ(rows.size(0), world.rank() == 0 && local == 0 ? 10 : 0);
          return rows * scales[local];
        });
    result.sum().backward();
    // Zero and not undefined, on the rank without tokens, too.
    ASSERT_TRUE(scales.grad().defined());
    EXPECT_EQ(scales.grad()[1].item<double>(), 0.0);
    EXPECT_EQ(scales.grad()[0].ne(0).item<bool>(), world.rank() == 0);
  });
}

// An optimizer treats them as those on ranks of their own.
TEST(ExpertExchange, ExpertsWithoutTokensHaveZeroGradients) {
  tests::run_ranks(1, [](World&) {
    const at::Tensor tokens = numbers({5, kFeatures}, 3);
    const ExpertRouting routing = route_tokens(
        torch::tensor({9.0, 0.0, 0.0, 0.0}, at::kDouble).expand({5, kExperts}),
        {.experts_per_token = 1});
    std::vector<at::Tensor> scales;
    for (int64_t e = 0; e < kExperts; ++e) {
      scales.push_back(torch::ones({1}, at::kDouble).requires_grad_());
    }
    std::vector<int64_t> called;
    const auto apply = [&] {
      called.clear();
      return apply_experts(
          tokens,
          routing,
          kExperts,
          nullptr,
          [&](int64_t e, const at::Tensor& rows) {
            called.push_back(e);
            return rows * scales[static_cast<size_t>(e)];
          });
    };
    apply().sum().backward();
    for (int64_t e = 0; e < kExperts; ++e) {
      const at::Tensor& gradient = scales[static_cast<size_t>(e)].grad();
      ASSERT_TRUE(gradient.defined()) << e;
      EXPECT_EQ(gradient.ne(0).item<bool>(), e == 0) << e;
    }
    const torch::NoGradGuard no_grad;
    apply();
    EXPECT_EQ(called, std::vector<int64_t>{0});
  });
}

TEST(ExpertExchange, ALostRankIsAnError) {
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    const auto group = world.new_communicator("expert");
    group->barrier();
    if (world.rank() == 1) {
      ::_exit(0);
    }
    const at::Tensor tokens = numbers({5, kFeatures}, 3);
    apply_experts(
        tokens,
        route_tokens(numbers({5, kExperts}, 1), {}),
        kExperts,
        group.get(),
        [](int64_t, const at::Tensor& rows) { return rows; });
  });
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(results[0].output.find("'expert' failed"), std::string::npos)
      << results[0].output;
}

TEST(ExpertExchange, SaysWhichSizesWouldDo) {
  expect_error(
      [] { local_experts(6, 0, 4); },
      {"6 experts", "4 expert-parallel ranks", "1, 2, 3, 6"});
  expect_error(
      [] {
        apply_experts(
            torch::zeros({3, 2}),
            route_tokens(torch::zeros({4, 2}), {}),
            2,
            nullptr,
            {});
      },
      {"[3, 2]", "[4, 1]"});
}

} // namespace tessera::sharding::expert_exchange_test

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/group_operations.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/collectives/exchange_operations.h"
#include "tessera/sharding/tensor_parallel/tensor_random.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

namespace tessera::sharding::group_operations_test {

namespace {

using Operation = std::function<at::Tensor(const at::Tensor&, Communicator&)>;

/// The same on all ranks.
at::Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::randn(sizes, at::kDouble);
}

/// Different on all ranks.
at::Tensor local_numbers(at::IntArrayRef sizes, const Communicator& group) {
  return numbers(sizes, 100 + group.rank());
}

double sum_over(Communicator& group, const at::Tensor& number) {
  const at::Tensor sum = number.detach().clone().view({1});
  group.all_reduce_sum(sum, "a test's sum").wait();
  return sum.item<double>();
}

/// <y', A x> = <A^T y', x>, added up over the ranks: what backward computes is
/// the transpose of what forward does.
/// @param output_is_full every rank has the same output and gradient of it, so
///     that it counts once, and so on.
void expect_transpose(
    const Operation& operation,
    const at::Tensor& input,
    Communicator& group,
    bool input_is_full,
    bool output_is_full) {
  const at::Tensor x = input.clone().requires_grad_();
  const at::Tensor y = operation(x, group);
  const at::Tensor gradient =
      output_is_full ? numbers(y.sizes(), 7) : local_numbers(y.sizes(), group);
  y.backward(gradient);
  const double ranks = group.size();
  const double left =
      sum_over(group, (y * gradient).sum()) / (output_is_full ? ranks : 1);
  const double right =
      sum_over(group, (x * x.grad()).sum()) / (input_is_full ? ranks : 1);
  // Sums of some tens of numbers of size 1 to 10.
  EXPECT_NEAR(left, right, 1e-12 * 100);
}

constexpr int64_t kUneven = 7;

} // namespace

TEST(GroupOperations, ForwardsAreTheCollectives) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      auto group = world.new_communicator("tensor");
      const DimSplit split(kUneven, ranks);
      const at::Tensor full = numbers({3, kUneven, 2}, 1);
      const at::Tensor part = take_part(full, 1, split, *group);
      EXPECT_TRUE(part.equal(full.narrow(
          1, split.begin(world.rank()), split.length(world.rank()))));
      EXPECT_TRUE(gather_parts(part, 1, split, *group).equal(full));
      EXPECT_TRUE(gather_parts(part, -2, split, *group).equal(full));

      at::Tensor sum = torch::zeros({6, 2}, at::kDouble);
      for (int r = 0; r < ranks; ++r) {
        sum += numbers({6, 2}, 100 + r);
      }
      const at::Tensor self_tensor = local_numbers({6, 2}, *group);
      EXPECT_TRUE(reduce_over_group(self_tensor, *group).allclose(sum, 1e-14));
      EXPECT_TRUE(copy_to_group(sum, *group).equal(sum));
      const at::Tensor scattered = reduce_scatter_parts(self_tensor, 0, *group);
      const int64_t length = 6 / ranks;
      EXPECT_TRUE(scattered.allclose(
          sum.narrow(0, world.rank() * length, length), 1e-14));
      EXPECT_TRUE(all_gather_parts(scattered, 0, *group).allclose(sum, 1e-14));
    });
  }
}

TEST(GroupOperations, BackwardsAreTheTransposes) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      auto group = world.new_communicator("tensor");
      const DimSplit split(kUneven, ranks);
      const at::Tensor full = numbers({6, kUneven}, 3);
      const at::Tensor local = local_numbers({6, kUneven}, *group);
      const at::Tensor part = local.narrow(
          1, split.begin(world.rank()), split.length(world.rank()));
      expect_transpose(copy_to_group, full, *group, true, false);
      expect_transpose(reduce_over_group, local, *group, false, true);
      expect_transpose(
          [&](const at::Tensor& x, Communicator& g) {
            return gather_parts(x, 1, split, g);
          },
          part,
          *group,
          false,
          true);
      expect_transpose(
          [&](const at::Tensor& x, Communicator& g) {
            return take_part(x, 1, split, g);
          },
          full,
          *group,
          true,
          false);
      expect_transpose(
          [](const at::Tensor& x, Communicator& g) {
            return all_gather_parts(x, 0, g);
          },
          local,
          *group,
          false,
          false);
      expect_transpose(
          [](const at::Tensor& x, Communicator& g) {
            return reduce_scatter_parts(x, 0, g);
          },
          local,
          *group,
          false,
          false);
    });
  }
}

// Uneven in both dimensions, and back.
TEST(GroupOperations, AllToAllExchangesWhatIsDivided) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      auto group = world.new_communicator("context");
      const DimSplit tokens(kUneven, ranks);
      const DimSplit heads(5, ranks);
      const at::Tensor full = numbers({2, 5, kUneven, 3}, 1);
      const auto part = [&](int64_t dim, const DimSplit& split) {
        return full.narrow(
            dim, split.begin(world.rank()), split.length(world.rank()));
      };
      const at::Tensor by_heads =
          all_to_all_parts(part(2, tokens), 2, tokens, 1, heads, *group);
      EXPECT_TRUE(by_heads.equal(part(1, heads)));
      EXPECT_TRUE(all_to_all_parts(by_heads, 1, heads, -2, tokens, *group)
                      .equal(part(2, tokens)));
      const auto exchange = [&](const at::Tensor& x, Communicator& g) {
        return all_to_all_parts(x, 2, tokens, 1, heads, g);
      };
      const at::Tensor local =
          local_numbers({2, 5, tokens.length(world.rank()), 3}, *group);
      expect_transpose(exchange, local, *group, false, false);
      expect_error(
          [&] { all_to_all_parts(full, 2, tokens, 0, heads, *group); },
          {"all_to_all_parts"});
    });
  }
}

// Rank r sends 2 r + destination rows, the first rank nothing to itself.
TEST(GroupOperations, RowsGoToTheirRanksAndBack) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      auto group = world.new_communicator("expert");
      RowCounts exchange;
      std::vector<at::Tensor> expected;
      int64_t rows = 0;
      for (int r = 0; r < ranks; ++r) {
        exchange.sent.push_back(2 * world.rank() + r);
        exchange.taken.push_back(2 * r + world.rank());
        rows += exchange.sent.back();
        // What rank r has, of which this rank's rows begin behind the others'.
        int64_t begin = 0;
        for (int before = 0; before < world.rank(); ++before) {
          begin += 2 * r + before;
        }
        int64_t all = 0;
        for (int to = 0; to < ranks; ++to) {
          all += 2 * r + to;
        }
        expected.push_back(
            numbers({all, 2}, 100 + r).narrow(0, begin, exchange.taken.back()));
      }
      const at::Tensor local = local_numbers({rows, 2}, *group);
      EXPECT_TRUE(
          all_to_all_rows(local, exchange, *group).equal(torch::cat(expected)));
      expect_transpose(
          [&](const at::Tensor& x, Communicator& g) {
            return all_to_all_rows(x, exchange, g);
          },
          local,
          *group,
          false,
          false);
      expect_error(
          [&] {
            all_to_all_rows(
                torch::zeros({rows + 1, 2}, at::kDouble), exchange, *group);
          },
          {"all_to_all_rows", "rows to send"});
    });
  }
}

TEST(GroupOperations, AMeanLeavesGradientsAsTheyAre) {
  tests::run_ranks(3, [](World& world) {
    auto group = world.new_communicator("context");
    const at::Tensor local =
        torch::full({2}, world.rank() + 1.0, at::kDouble).requires_grad_();
    const at::Tensor mean = mean_over_group(local, *group);
    EXPECT_TRUE(mean.equal(torch::full({2}, 2.0, at::kDouble)));
    (mean * 5).sum().backward();
    EXPECT_TRUE(local.grad().equal(torch::full({2}, 5.0, at::kDouble)));
  });
}

TEST(GroupOperations, CanBeDifferentiatedTwice) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const at::Tensor x = numbers({4}, 1).requires_grad_();
    // Whole in, whole out: sum over the two ranks of rank-weighted squares.
    const at::Tensor y = reduce_over_group(
        copy_to_group(x, *group).pow(3) * (1.0 + world.rank()), *group);
    const auto first =
        torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true);
    EXPECT_TRUE(first[0].allclose(9 * x * x));
    const auto second = torch::autograd::grad({first[0].sum()}, {x});
    EXPECT_TRUE(second[0].allclose(18 * x));
  });
}

TEST(GroupOperations, WrongSizesAreNamed) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const at::Tensor five = torch::zeros({2, 5});
    expect_error(
        [&] { reduce_scatter_parts(five, 1, *group); },
        {"[2, 5]", "2 ranks", "pad sequences"});
    expect_error(
        [&] { take_part(five, 1, DimSplit(6, 2), *group); },
        {"take_part", "[2, 5]", "6 elements"});
    expect_error(
        [&] { gather_parts(five, 1, DimSplit(6, 2), *group); },
        {"gather_parts", "3 elements"});
  });
}

TEST(DimSplit, GivesTheFirstPartsMore) {
  const DimSplit split(22, 3, 2);
  EXPECT_EQ(split.begin(0), 0);
  EXPECT_EQ(split.begin(1), 8);
  EXPECT_EQ(split.begin(2), 16);
  EXPECT_EQ(split.length(2), 6);
  EXPECT_EQ(split.longest(), 8);
  EXPECT_FALSE(split.is_even());
  EXPECT_TRUE(DimSplit(12, 3, 2).is_even());
  expect_error([] { DimSplit(7, 2, 2); }, {"7 elements", "the unit, 2"});
  expect_error([] { DimSplit(6, 4, 2); }, {"3 units", "4 ranks"});
  expect_error([] { DimSplit(3, 4); }, {"3 elements", "4 ranks"});
}

TEST(TensorRandomScope, DiffersInsideAndAgreesOutside) {
  tests::run_ranks(3, [](World& world) {
    auto group = world.new_communicator("tensor");
    torch::manual_seed(5);
    const at::Tensor before = torch::rand({8});
    const auto draw = [&] {
      const TensorRandomScope scope(*group, at::kCPU);
      return torch::rand({8});
    };
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const at::Tensor state = generator.get_state();
    const at::Tensor inside = draw();
    const at::Tensor again = draw();
    const at::Tensor after = torch::rand({8});
    const auto all_of = [&](const at::Tensor& self_tensor) {
      const at::Tensor all = torch::empty({group->size(), 8});
      group->all_gather(all, self_tensor, "a test's gather").wait();
      return all;
    };
    EXPECT_TRUE(all_of(before)[0].equal(before));
    EXPECT_TRUE(all_of(after)[0].equal(after));
    const at::Tensor insides = all_of(inside);
    EXPECT_FALSE(insides[0].equal(insides[1]));
    EXPECT_FALSE(insides[0].equal(insides[2]));
    EXPECT_FALSE(insides[1].equal(insides[2]));
    EXPECT_FALSE(inside.equal(again));
    EXPECT_FALSE(inside.equal(after));
    // The default generator's state is all that is needed to repeat it.
    generator.set_state(state);
    EXPECT_TRUE(draw().equal(inside));
    EXPECT_TRUE(draw().equal(again));
    EXPECT_TRUE(torch::rand({8}).equal(after));
  });
}

TEST(TensorRandomScope, DoesNothingAlone) {
  const Communicator alone("alone");
  torch::manual_seed(5);
  const at::Tensor expected = torch::rand({8});
  torch::manual_seed(5);
  const TensorRandomScope scope(alone, at::kCPU);
  EXPECT_TRUE(torch::rand({8}).equal(expected));
}

} // namespace tessera::sharding::group_operations_test

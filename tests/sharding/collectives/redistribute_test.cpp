// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/redistribute.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::sharding::redistribute_test {

namespace {

using Groups = std::vector<Communicator*>;

at::Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::randn(sizes, at::kDouble);
}

/// What this rank has of `full`, made without communication.
at::Tensor placed(at::Tensor x, const Placements& to, const Groups& groups) {
  for (size_t axis = 0; axis < groups.size(); ++axis) {
    const int rank = groups[axis]->rank();
    const int ranks = groups[axis]->size();
    if (const auto* shard = std::get_if<Shard>(&to[axis])) {
      const DimSplit split(x.size(shard->dim), ranks, shard->unit);
      x = x.narrow(shard->dim, split.begin(rank), split.length(rank)).clone();
    } else if (std::holds_alternative<Partial>(to[axis])) {
      at::Tensor last = x.clone();
      std::vector<at::Tensor> summands;
      for (int r = 0; r + 1 < ranks; ++r) {
        summands.push_back(
            numbers(x.sizes(), 50 + r + 10 * static_cast<int64_t>(axis)));
        last -= summands.back();
      }
      summands.push_back(last);
      x = summands[static_cast<size_t>(rank)];
    }
  }
  return x;
}

/// The whole of what the ranks have. `sizes` of it.
at::Tensor full_of(
    at::Tensor x,
    std::vector<int64_t> sizes,
    const Placements& from,
    const Groups& groups) {
  for (size_t axis = groups.size(); axis-- > 0;) {
    Communicator& group = *groups[axis];
    if (const auto* shard = std::get_if<Shard>(&from[axis])) {
      const Placements outer(
          from.begin(), from.begin() + static_cast<int64_t>(axis));
      const int64_t length = placed_sizes(
          sizes,
          outer,
          at::ArrayRef<Communicator*>(groups).slice(
              0, axis))[static_cast<size_t>(shard->dim)];
      // The parts, each in its place among zeros, added up.
      const DimSplit split(length, group.size(), shard->unit);
      std::vector<int64_t> local = x.sizes().vec();
      local[static_cast<size_t>(shard->dim)] = length;
      at::Tensor all = torch::zeros(local, at::kDouble);
      all.narrow(
             shard->dim, split.begin(group.rank()), split.length(group.rank()))
          .copy_(x);
      group.all_reduce_sum(all, "a test's parts").wait();
      x = all;
    } else if (std::holds_alternative<Partial>(from[axis])) {
      x = x.clone(at::MemoryFormat::Contiguous);
      group.all_reduce_sum(x, "a test's sum").wait();
    }
  }
  return x;
}

/// Of the gradients.
Placements dual(Placements placements) {
  for (Placement& placement : placements) {
    if (std::holds_alternative<Partial>(placement)) {
      placement = Shared{};
    } else if (std::holds_alternative<Shared>(placement)) {
      placement = Partial{};
    }
  }
  return placements;
}

std::string text_of(const Placements& placements) {
  std::string text;
  for (const Placement& placement : placements) {
    text += to_string(placement) + " ";
  }
  return text;
}

/// Values and gradients are those of the whole. Sums of at most 6 numbers of
/// size 1 to 10 in another order: 1e-13 is some tens of roundings.
void expect_same_tensor(
    const std::vector<int64_t>& sizes,
    const Placements& from,
    const Placements& to,
    const Groups& groups) {
  SCOPED_TRACE(text_of(from) + "-> " + text_of(to));
  const at::Tensor full = numbers(sizes, 1);
  const at::Tensor gradient = numbers(sizes, 2);
  const at::Tensor x = placed(full, from, groups).clone().requires_grad_();
  const at::Tensor y = redistribute(x, sizes, from, to, groups);
  const auto local = placed_sizes(sizes, to, groups);
  ASSERT_EQ(y.sizes(), at::IntArrayRef(local));
  EXPECT_TRUE(full_of(y.detach(), sizes, to, groups).allclose(full, 0, 1e-13));
  // Replicas are equal on all ranks, to the bit.
  y.backward(placed(gradient, dual(to), groups));
  EXPECT_TRUE(full_of(x.grad(), sizes, dual(from), groups)
                  .allclose(gradient, 0, 1e-13));
}

const std::vector<Placement> kKinds{
    Replicate{},
    Shard{0},
    Shard{1, 3},
    Partial{},
    Shared{}};

} // namespace

TEST(Redistribute, IsTheSameTensorInEveryPairOfPlacements) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      auto group = world.new_communicator("tensor");
      for (const Placement& from : kKinds) {
        for (const Placement& to : kKinds) {
          // Uneven over 2, 3 and 4 ranks, and even over 2 and 4.
          expect_same_tensor({7, 15, 2}, {from}, {to}, {group.get()});
          expect_same_tensor({4, 12}, {from}, {to}, {group.get()});
        }
      }
    });
  }
}

TEST(Redistribute, IsTheSameTensorOnTwoAxes) {
  tests::RankOptions options;
  options.limit = std::chrono::seconds(300);
  for (const int tensor : {2, 3}) {
    tests::run_ranks(
        2 * tensor,
        [tensor](World& world) {
          ParallelGroups all(
              world,
              ParallelMesh(
                  {.data = 2, .tensor = tensor}, 2 * tensor, 2 * tensor),
              at::kCPU);
          const Groups groups{
              &all[ParallelGroup::kData], &all[ParallelGroup::kTensor]};
          for (size_t i = 0; i < 625; ++i) {
            const Placements from{kKinds[i % 5], kKinds[i / 5 % 5]};
            const Placements to{kKinds[i / 25 % 5], kKinds[i / 125]};
            expect_same_tensor({13, 21}, from, to, groups);
          }
        },
        options);
  }
}

TEST(Redistribute, CanBeDifferentiatedTwice) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const at::Tensor x = numbers({3}, 1).requires_grad_();
    // Each rank squares its part; the sum is x^2.
    const at::Tensor parts =
        redistribute(x, {3}, {Replicate{}}, {Shard{0}}, {group.get()});
    const at::Tensor y = redistribute(
        parts.pow(3), {3}, {Shard{0}}, {Replicate{}}, {group.get()});
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
    EXPECT_TRUE(first[0].allclose(3 * x * x));
    const auto second = torch::autograd::grad({first[0].sum()}, {x});
    EXPECT_TRUE(second[0].allclose(6 * x));
  });
}

TEST(Redistribute, SaysWhatIsWrong) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const at::Tensor x = torch::zeros({2, 5});
    const Groups groups{group.get()};
    expect_error(
        [&] {
          redistribute(x, {2, 5}, {Shard{0}}, {Replicate{}}, groups);
        },
        {"[2, 5]", "{Shard{0}}", "has a part of [1, 5]"});
    expect_error(
        [&] {
          redistribute(x, {2, 5}, {Replicate{}}, {Shard{2}}, groups);
        },
        {"axis 0", "Shard{2}", "2 dimensions"});
    expect_error(
        [&] {
          redistribute(x, {2, 5}, {Replicate{}}, {Shard{0, 2}}, groups);
        },
        {"axis 0",
         "tensor",
         "Shard{0, 2}",
         "2 ranks",
         "2 elements",
         "units",
         "Replicate"});
    expect_error(
        [&] {
          redistribute(x, {2, 5}, {}, {Replicate{}}, groups);
        },
        {"placements is 0", "axes 1"});
    expect_error(
        [&] { redistribute(x, Partial{}, Shard{1}, *group); },
        {"dimension 1", "[2, 5]", "2 ranks", "Pad it"});
  });
}

} // namespace tessera::sharding::redistribute_test

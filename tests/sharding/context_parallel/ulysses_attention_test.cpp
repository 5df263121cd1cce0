// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/ulysses_attention.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <vector>

namespace tessera::sharding::ulysses_attention_test {

namespace {

constexpr int64_t kHeads = 12;
constexpr int64_t kTokens = 24;

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

struct AttentionCase {
  int64_t kv_heads = kHeads;
  bool causal = false;
  at::Tensor mask; ///< of whole sequences, [.., 1 or heads, tokens, tokens]
  ContextLayout layout = ContextLayout::kContiguous;
};

/// Forward and backward over the group against LibTorch's on whole sequences.
void expect_full_attention(
    Communicator& group,
    const AttentionCase& test_case) {
  const auto part = [&](const at::Tensor& full) {
    return take_context_part(
        full, 2, test_case.layout, group.rank(), group.size());
  };
  const auto attend = [&](const at::Tensor& query,
                          const at::Tensor& key,
                          const at::Tensor& value,
                          const at::Tensor& mask) {
    return at::scaled_dot_product_attention(
        query,
        key,
        value,
        mask.defined() ? std::optional(mask) : std::nullopt,
        0.0,
        test_case.causal,
        0.3,
        query.size(1) != key.size(1));
  };
  // Values have features of their own.
  const at::Tensor values[] = {
      numbers({2, kHeads, kTokens, 6}, 1),
      numbers({2, test_case.kv_heads, kTokens, 6}, 2),
      numbers({2, test_case.kv_heads, kTokens, 5}, 3)};
  std::vector<at::Tensor> full;
  std::vector<at::Tensor> local;
  for (const at::Tensor& value : values) {
    full.push_back(value.clone().requires_grad_());
    local.push_back(part(value).clone().requires_grad_());
  }
  const at::Tensor expected = attend(full[0], full[1], full[2], test_case.mask);
  const at::Tensor found = ulysses_attention(
      local[0],
      local[1],
      local[2],
      group,
      test_case.layout,
      [&](const at::Tensor& query,
          const at::Tensor& key,
          const at::Tensor& value) {
        at::Tensor mask = test_case.mask;
        if (mask.defined() && mask.size(1) == kHeads) {
          const HeadRange heads =
              ulysses_heads(kHeads, group.rank(), group.size());
          mask = mask.narrow(1, heads.begin, heads.length);
        }
        return attend(query, key, value, mask);
      });
  // Float64; sums of 24 weighted numbers of size 1.
  constexpr double kTolerance = 1e-12;
  EXPECT_TRUE(found.allclose(part(expected), kTolerance, kTolerance));
  const at::Tensor gradient = numbers(expected.sizes(), 4);
  expected.backward(gradient);
  found.backward(part(gradient));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        local[i].grad().allclose(part(full[i].grad()), kTolerance, kTolerance))
        << i;
  }
}

} // namespace

// kv heads that are divided (12, 6), repeated on some ranks (2, 1) and repeated
// because they do not divide evenly (3 over 2 ranks, 6 over 4).
TEST(UlyssesAttention, IsTheAttentionOfWholeSequences) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      const auto group = world.new_communicator("context");
      for (const int64_t kv_heads : {12, 6, 3, 2, 1}) {
        for (const bool causal : {false, true}) {
          for (const auto layout :
               {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
            SCOPED_TRACE(
                ::testing::Message()
                << ranks << " ranks, kv heads " << kv_heads << ", causal "
                << causal << ", layout " << static_cast<int>(layout));
            expect_full_attention(*group, {kv_heads, causal, {}, layout});
          }
        }
      }
    });
  }
}

TEST(UlyssesAttention, TakesAnyMask) {
  for (const int ranks : {2, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      const auto group = world.new_communicator("context");
      // Padding on the left of one sequence and on the right of the other.
      at::Tensor padding = torch::ones({2, 1, 1, kTokens}, at::kBool);
      padding[0].narrow(-1, 0, 5).fill_(false);
      padding[1].narrow(-1, kTokens - 9, 9).fill_(false);
      expect_full_attention(*group, {.mask = padding});
      expect_full_attention(
          *group, {.mask = padding, .layout = ContextLayout::kZigzag});
      const at::Tensor bias = numbers({1, kHeads, kTokens, kTokens}, 9);
      expect_full_attention(
          *group,
          {.kv_heads = 3, .mask = bias, .layout = ContextLayout::kZigzag});
    });
  }
}

TEST(UlyssesAttention, SaysWhichContextSizesWouldDo) {
  expect_error(
      [] { ulysses_heads(12, 0, 5); },
      {"12 heads", "5 context-parallel ranks", "1, 2, 3, 4, 6, 12", "ring"});
  tests::run_ranks(2, [](World& world) {
    const auto group = world.new_communicator("context");
    const auto first = [](const at::Tensor& query,
                          const at::Tensor&,
                          const at::Tensor&) { return query; };
    const auto heads = [](int64_t count) {
      return torch::zeros({1, count, 4, 2});
    };
    const auto layout = ContextLayout::kContiguous;
    expect_error(
        [&] {
          ulysses_attention(
              heads(3), heads(3), heads(3), *group, layout, first);
        },
        {"3 heads", "context size of 1, 3"});
    expect_error(
        [&] {
          ulysses_attention(
              heads(4), heads(3), heads(3), *group, layout, first);
        },
        {"[1, 4, 4, 2]", "[1, 3, 4, 2]"});
  });
}

TEST(ContextLayout, OrdersAreInverse) {
  const at::Tensor sequence = torch::arange(24).view({2, 12});
  for (const auto layout :
       {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
    const at::Tensor by_rank = in_rank_order(sequence, 1, layout, 3);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(by_rank.narrow(1, 4 * rank, 4)
                      .equal(take_context_part(sequence, 1, layout, rank, 3)));
    }
    EXPECT_TRUE(in_sequence_order(by_rank, 1, layout, 3).equal(sequence));
  }
}

} // namespace tessera::sharding::ulysses_attention_test

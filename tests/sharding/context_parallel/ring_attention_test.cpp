// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/ring_attention.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <optional>
#include <set>
#include <vector>

namespace tessera::sharding::ring_attention_test {

namespace {

constexpr int64_t kTokens = 24;
constexpr int64_t kHeads = 4;
constexpr int64_t kFeatures = 6;

runtime::RingChannels ring_of_all(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {world, "context", ranks, at::kCPU};
}

at::Tensor numbers(int64_t heads, uint64_t seed, at::ScalarType dtype) {
  torch::manual_seed(seed);
  return torch::randn({2, heads, kTokens, kFeatures}, at::kDouble).to(dtype);
}

/// Forward and backward on `ring` against LibTorch's on whole sequences.
/// @param tolerance relative, for outputs and gradients.
void expect_full_attention(
    World& world,
    runtime::RingChannels& ring,
    const RingAttentionOptions& options,
    int64_t kv_heads,
    at::ScalarType dtype,
    double tolerance) {
  const auto part = [&](const at::Tensor& full) {
    return take_context_part(
        full, 2, options.layout, world.rank(), world.size());
  };
  const at::Tensor values[] = {
      numbers(kHeads, 1, dtype),
      numbers(kv_heads, 2, dtype),
      numbers(kv_heads, 3, dtype)};
  const at::Tensor gradient = numbers(kHeads, 4, dtype);
  std::vector<at::Tensor> full;
  std::vector<at::Tensor> local;
  for (const at::Tensor& value : values) {
    full.push_back(value.to(dtype == at::kDouble ? at::kDouble : at::kFloat)
                       .clone()
                       .requires_grad_());
    local.push_back(part(value).clone().requires_grad_());
  }
  const at::Tensor mask =
      options.pattern.defined() ? options.pattern.dense() : at::Tensor();
  const at::Tensor expected = at::scaled_dot_product_attention(
      full[0],
      full[1],
      full[2],
      mask.defined() ? std::optional(mask) : std::nullopt,
      0.0,
      options.causal,
      options.scale,
      kv_heads != kHeads);
  const at::Tensor found =
      ring_attention(local[0], local[1], local[2], ring, options);
  const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.to(b.scalar_type()).allclose(b, tolerance, tolerance);
  };
  EXPECT_EQ(found.scalar_type(), dtype);
  EXPECT_TRUE(close(found, part(expected)));
  expected.backward(gradient.to(expected.scalar_type()));
  found.backward(part(gradient));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(close(local[i].grad(), part(full[i].grad()))) << i;
  }
}

} // namespace

// Float64; sums of 24 weighted numbers of size 1, in another order.
TEST(RingAttention, IsTheAttentionOfWholeSequences) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      runtime::RingChannels ring = ring_of_all(world);
      for (const bool causal : {false, true}) {
        for (const auto layout :
             {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
          for (const int64_t kv_heads : {kHeads, int64_t{2}, int64_t{1}}) {
            SCOPED_TRACE(
                ::testing::Message()
                << "causal " << causal << ", layout "
                << static_cast<int>(layout) << ", kv heads " << kv_heads);
            expect_full_attention(
                world,
                ring,
                {causal, causal ? std::optional(0.3) : std::nullopt, layout},
                kv_heads,
                at::kDouble,
                1e-12);
          }
        }
      }
    });
  }
}

// Every query sees itself: the others have no result to compare.
TEST(RingAttention, TakesPatternsOfWholeSequences) {
  using runtime::AttentionPattern;
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      runtime::RingChannels ring = ring_of_all(world);
      const auto causal = AttentionPattern::causal(kTokens, kTokens, at::kCPU);
      const auto full = AttentionPattern::full(kTokens, kTokens, at::kCPU);
      const at::Tensor ids = at::arange(kTokens).repeat({2, 1}).div(5, "floor");
      const at::Tensor global = at::arange(kTokens).eq(9).repeat({2, 1});
      for (const auto& pattern :
           {causal.within_documents(ids),
            full.within_documents(ids),
            causal.within_window(3),
            full.within_window(4).with_global(global),
            causal.with_prefix(at::full({2}, 7, at::kLong))}) {
        for (const auto layout :
             {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
          expect_full_attention(
              world,
              ring,
              {false, 0.3, layout, pattern},
              2,
              at::kDouble,
              1e-12);
        }
      }
    });
  }
}

// Inputs and results have eight bits; what is between them has 24.
TEST(RingAttention, TakesLowPrecision) {
  tests::run_ranks(2, [](World& world) {
    runtime::RingChannels ring = ring_of_all(world);
    expect_full_attention(
        world,
        ring,
        {true, {}, ContextLayout::kZigzag},
        kHeads,
        at::kBFloat16,
        1.0 / 64);
    expect_full_attention(world, ring, {}, kHeads, at::kFloat, 1e-5);
  });
}

TEST(RingAttention, WrongShapesAreNamed) {
  World world(0, 1, 0, nullptr, {});
  runtime::RingChannels ring(world, "context", {0}, at::kCPU);
  const at::Tensor four = torch::zeros({1, 4, 2, 2});
  const at::Tensor three = torch::zeros({1, 3, 2, 2});
  expect_error(
      [&] { ring_attention(four, three, three, ring); },
      {"[1, 4, 2, 2]", "[1, 3, 2, 2]", "divides"});
  expect_error(
      [&] { ring_attention(four, four, four.to(at::kDouble), ring); },
      {"Double", "one dtype"});
}

TEST(ContextLayout, EveryTokenIsOnOneRank) {
  for (const auto layout :
       {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
    std::set<int64_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      int64_t offset = 0;
      for (const auto& segment : context_segments(layout, 12, rank, 3)) {
        EXPECT_EQ(segment.offset, offset);
        offset += segment.length;
        for (int64_t i = 0; i < segment.length; ++i) {
          EXPECT_TRUE(seen.insert(segment.first + i).second);
        }
      }
      EXPECT_EQ(offset, 4);
    }
    EXPECT_EQ(seen.size(), 12u);
  }
}

// Pairs of tokens that a causal mask lets through.
TEST(ContextLayout, ZigzagSharesCausalWorkEvenly) {
  const auto work = [](ContextLayout layout, int rank) {
    int64_t pairs = 0;
    for (const auto& segment : context_segments(layout, 24, rank, 4)) {
      for (int64_t i = 0; i < segment.length; ++i) {
        pairs += segment.first + i + 1;
      }
    }
    return pairs;
  };
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(
        work(ContextLayout::kZigzag, rank), work(ContextLayout::kZigzag, 0));
  }
  EXPECT_GT(
      work(ContextLayout::kContiguous, 3),
      4 * work(ContextLayout::kContiguous, 0));
}

TEST(ContextLayout, NamesLengthsThatDoNotDivide) {
  expect_error(
      [] { context_segments(ContextLayout::kContiguous, 10, 0, 4); },
      {"10 tokens", "4 equal parts"});
  expect_error(
      [] { context_segments(ContextLayout::kZigzag, 12, 0, 4); },
      {"12 tokens", "8 equal parts", "pad"});
}

} // namespace tessera::sharding::ring_attention_test

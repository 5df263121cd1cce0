// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pattern_attention.h"

#include "support/expect_error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/attention_kernels.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace tessera::runtime::pattern_attention_test {

namespace {

struct NamedPattern {
  std::string name;
  AttentionPattern pattern;
};

/// Of neighbors with equal numbers: lengths that do not fit tiles or blocks.
at::Tensor documents(int64_t batch, int64_t length) {
  at::Tensor ids = at::zeros({batch, length}, at::kLong);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t place = 0;
    for (int64_t id = 0; place < length; ++id) {
      const int64_t size = std::min(length - place, 1 + (7 + 31 * id + b) % 97);
      ids[b].narrow(0, place, size).fill_(id % 2);
      place += size;
    }
  }
  return ids;
}

std::vector<NamedPattern> patterns(int64_t batch, int64_t length) {
  const auto causal = AttentionPattern::causal(length, length, at::kCPU);
  const auto full = AttentionPattern::full(length, length, at::kCPU);
  const at::Tensor places = at::arange(length).expand({batch, length});
  at::Tensor padding = places.lt(length - length / 3).to(at::kLong);
  padding[0].fill_(1);
  const at::Tensor left = places.ge(length / 4).to(at::kLong);
  const at::Tensor prefix =
      at::arange(batch) * (length / 2) + std::min<int64_t>(length, 3);
  const at::Tensor ids = documents(batch, length);
  const int64_t window = std::max<int64_t>(1, length / 5);
  const at::Tensor global = (places.remainder(61).eq(0)).to(at::kLong);
  std::vector<NamedPattern> all = {
      {"full", full},
      {"causal", causal},
      {"window", full.within_window(window)},
      {"causal window", causal.within_window(window)},
      {"documents", full.within_documents(ids)},
      {"causal documents", causal.within_documents(ids)},
      {"documents and windows",
       causal.within_documents(ids).within_window(window)},
      {"padding", full.without_padding(padding)},
      {"padding at the left", causal.without_padding(left)},
      {"prefix", causal.with_prefix(prefix)},
      {"prefix and documents",
       causal.with_prefix(prefix).within_documents(ids)},
      {"global tokens", full.within_window(window).with_global(global)},
      {"all of them",
       causal.with_prefix(prefix)
           .within_documents(ids)
           .within_window(window)
           .with_global(global)
           .without_padding(padding)},
  };
  if (length > 3) {
    all.push_back(
        {"the last queries",
         AttentionPattern::causal(length - length / 3, length, at::kCPU)
             .within_documents(ids)});
  }
  return all;
}

/// Where a query sees a key: without what dense() adds to rows that see none.
at::Tensor sees_any(const AttentionPattern& pattern) {
  const at::Tensor places = at::arange(pattern.keys, at::kInt);
  at::Tensor sees = pattern.first.unsqueeze(2).le(places) &
                    pattern.end.unsqueeze(2).gt(places);
  if (pattern.global_keys.defined()) {
    sees = sees | pattern.global_keys.unsqueeze(1);
  }
  if (pattern.seen.defined()) {
    sees = sees & pattern.seen.unsqueeze(1);
  }
  return sees.any(-1).unsqueeze(1).unsqueeze(-1);
}

struct Solved {
  at::Tensor out, query, key, value;
};

/// In float64.
Solved dense_attention(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& gradient,
    const AttentionPattern& pattern,
    double scale) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& input : inputs) {
    wide.push_back(input.detach().to(at::kDouble).requires_grad_());
  }
  const int64_t group = inputs[0].size(1) / inputs[1].size(1);
  const at::Tensor scores =
      at::matmul(wide[0], wide[1].repeat_interleave(group, 1).transpose(2, 3)) *
      scale;
  const at::Tensor out =
      at::matmul(
          scores
              .masked_fill(
                  ~pattern.dense(), -std::numeric_limits<double>::infinity())
              .softmax(-1),
          wide[2].repeat_interleave(group, 1)) *
      sees_any(pattern);
  out.backward(gradient.to(at::kDouble));
  return {out.detach(), wide[0].grad(), wide[1].grad(), wide[2].grad()};
}

void expect_close(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance,
    const std::string& name) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << name;
  const double largest = std::max(1e-2, expected.abs().max().item<double>());
  const double error =
      (found.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * largest) << name;
}

struct Shape {
  int64_t batch, heads, key_heads, length, features, values;
};

std::vector<at::Tensor> inputs_of(const Shape& s, at::ScalarType dtype) {
  const auto made = [&](int64_t heads, int64_t tokens, int64_t features) {
    return at::randn({s.batch, tokens, heads, features})
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_();
  };
  return {
      made(s.heads, s.length, s.features),
      made(s.key_heads, s.length, s.features),
      made(s.key_heads, s.length, s.values)};
}

TEST(PatternAttention, IsDenseAttention) {
  torch::manual_seed(3);
  const std::vector<Shape> shapes = {
      {1, 1, 1, 1, 1, 1},
      {2, 4, 2, 37, 8, 24},
      {2, 2, 1, 150, 33, 17},
      {1, 1, 1, 273, 64, 64}};
  for (const Shape& shape : shapes) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const double tolerance = dtype == at::kFloat      ? 2e-5
                               : dtype == at::kBFloat16 ? 0x1p-6
                                                        : 0x1p-9;
      if (dtype == at::kHalf && shape.length > 100) {
        continue; // float64's part is slow, and bfloat16 has been seen
      }
      for (const auto& [name, pattern] : patterns(shape.batch, shape.length)) {
        std::vector<at::Tensor> inputs = inputs_of(shape, dtype);
        const int64_t queries = pattern.queries;
        const at::Tensor all = inputs[0];
        inputs[0] = all.detach()
                        .narrow(2, shape.length - queries, queries)
                        .requires_grad_();
        const double scale = 0.3;
        const at::Tensor out =
            pattern_attention(inputs[0], inputs[1], inputs[2], pattern, scale);
        const at::Tensor gradient = at::randn(out.sizes()).to(dtype);
        out.backward(gradient);
        const Solved expected =
            dense_attention(inputs, gradient, pattern, scale);
        const std::string of = name + " of " + std::to_string(shape.length) +
                               " " + at::toString(dtype);
        expect_close(out, expected.out, tolerance, of);
        expect_close(inputs[0].grad(), expected.query, tolerance, of + ", q");
        expect_close(inputs[1].grad(), expected.key, tolerance, of + ", k");
        expect_close(inputs[2].grad(), expected.value, tolerance, of + ", v");
      }
    }
  }
}

TEST(AttentionPattern, SaysWhoSeesWhom) {
  const auto rows = [](const AttentionPattern& pattern) {
    const at::Tensor mask = pattern.dense();
    std::string text;
    for (int64_t q = 0; q < pattern.queries; ++q) {
      for (int64_t k = 0; k < pattern.keys; ++k) {
        const bool sees =
            mask.expand({-1, -1, pattern.queries, -1})[0][0][q][k].item<bool>();
        text += sees ? 'x' : '.';
      }
      text += '/';
    }
    return text;
  };
  const auto causal = [](int64_t length) {
    return AttentionPattern::causal(length, length, at::kCPU);
  };
  const auto full = [](int64_t length) {
    return AttentionPattern::full(length, length, at::kCPU);
  };
  EXPECT_EQ(rows(full(2)), "xx/xx/");
  EXPECT_EQ(rows(causal(3)), "x../xx./xxx/");
  EXPECT_EQ(rows(AttentionPattern::causal(2, 3, at::kCPU)), "xx./xxx/");
  EXPECT_EQ(rows(full(4).within_window(2)), "xx../xxx./.xxx/..xx/");
  EXPECT_EQ(rows(causal(4).within_window(2)), "x.../xx../.xx./..xx/");
  const at::Tensor ids = at::tensor({7, 7, 2, 7}).unsqueeze(0);
  EXPECT_EQ(rows(full(4).within_documents(ids)), "xx../xx../..x./...x/");
  EXPECT_EQ(
      rows(causal(4).with_prefix(at::tensor({2}))), "xx../xx../xxx./xxxx/");
  const at::Tensor padding = at::tensor({0, 1, 1}).unsqueeze(0);
  EXPECT_EQ(
      rows(causal(3).without_padding(padding)),
      "xxx/.x./.xx/"); // The first one sees nothing.
  EXPECT_EQ(
      rows(full(4).within_window(1).with_global(
          at::tensor({0, 1, 0, 0}).unsqueeze(0))),
      "xx../xxxx/.xx./.x.x/");
  const AttentionPattern window = causal(6).within_window(3);
  EXPECT_EQ(
      rows(window.at_tokens(at::tensor({0, 1, 3, 5}).unsqueeze(0))),
      "x.../xx../.xx./..xx/");
  EXPECT_EQ(rows(window.narrowed(2, 3, 1, 3)), "xx./xxx/.xx/");
  expect_error([&] { full(3).within_window(0); }, {"window", "0", "1 or more"});
  expect_error(
      [&] { full(3).within_documents(ids); },
      {"document_ids", "[1, 4]", "[batch, 3]"});
  expect_error(
      [&] { full(3).without_padding(ids); },
      {"attention mask", "[1, 4]", "[batch, 3]"});
}

// A document's results do not depend on what is in the row before it.
TEST(PatternAttention, DocumentsHaveTheBitsThatTheyHaveAlone) {
  torch::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> packed =
        inputs_of({1, 4, 2, 431, 32, 16}, dtype);
    const at::Tensor ids = documents(1, 431);
    const auto causal = AttentionPattern::causal(431, 431, at::kCPU);
    const at::Tensor out = pattern_attention(
        packed[0], packed[1], packed[2], causal.within_documents(ids), 0.3);
    const at::Tensor gradient = at::randn(out.sizes()).to(dtype);
    const auto all = torch::autograd::grad({out}, packed, {gradient});
    for (int64_t begin = 0; begin < 431;) {
      int64_t end = begin + 1;
      while (end < 431 && ids[0][end].equal(ids[0][begin])) {
        ++end;
      }
      const int64_t length = end - begin;
      std::vector<at::Tensor> alone;
      for (const at::Tensor& x : packed) {
        alone.push_back(
            x.detach().narrow(2, begin, length).clone().requires_grad_());
      }
      const at::Tensor own = pattern_attention(
          alone[0],
          alone[1],
          alone[2],
          AttentionPattern::causal(length, length, at::kCPU),
          0.3);
      EXPECT_TRUE(own.equal(out.narrow(2, begin, length))) << begin;
      const auto gradients = torch::autograd::grad(
          {own}, alone, {gradient.narrow(2, begin, length)});
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(gradients[i].equal(all[i].narrow(2, begin, length)))
            << begin << ", input " << i;
      }
      begin = end;
    }
  }
}

/// Pairs that tiles and blocks of a schedule may compute.
int64_t pairs_of(const AttentionPattern& pattern) {
  const at::Tensor first =
      pattern.first.expand({1, pattern.queries}).contiguous();
  const at::Tensor end = pattern.end.expand({1, pattern.queries}).contiguous();
  const AttentionRow row{
      .first = first.const_data_ptr<int32_t>(),
      .end = end.const_data_ptr<int32_t>(),
      .seen = nullptr,
      .global = nullptr};
  const auto schedule =
      AttentionSchedule::of(row, pattern.queries, pattern.keys);
  int64_t pairs = 0;
  int64_t queries = 0;
  for (const AttentionTile& tile : schedule.tiles) {
    EXPECT_EQ(tile.begin, queries);
    queries = tile.end;
    pairs += (tile.end - tile.begin) * (tile.key_end - tile.key_begin);
  }
  EXPECT_EQ(queries, pattern.queries);
  int64_t covered = 0;
  for (const AttentionComponent& component : schedule.components) {
    EXPECT_EQ(component.key_begin, covered);
    covered = component.key_end;
  }
  EXPECT_EQ(covered, pattern.keys);
  return pairs;
}

TEST(PatternAttention, CostsWhatQueriesSee) {
  constexpr int64_t kLength = 4096;
  const auto causal = AttentionPattern::causal(kLength, kLength, at::kCPU);
  const at::Tensor ids = at::arange(kLength).unsqueeze(0).div(128, "floor");
  // Half of each document's square, in tiles of 64 queries.
  EXPECT_EQ(pairs_of(causal.within_documents(ids)), kLength / 128 * (64 * 192));
  EXPECT_LE(pairs_of(causal), kLength * (kLength / 2 + 64));
  EXPECT_LE(pairs_of(causal.within_window(200)), kLength * (200 + 64));
  // One query that sees all does not make its neighbors see all.
  at::Tensor global = at::zeros({1, kLength}, at::kLong);
  global[0][2000] = 1;
  const auto window = causal.within_window(200).with_global(global);
  EXPECT_LE(pairs_of(window), kLength * (200 + 64 + 2));
}

TEST(PatternAttention, IsDifferentiableTwice) {
  torch::manual_seed(6);
  std::vector<at::Tensor> inputs = inputs_of({1, 2, 1, 9, 4, 4}, at::kFloat);
  const auto pattern =
      AttentionPattern::causal(9, 9, at::kCPU).within_window(4);
  const auto penalty = [&](const at::Tensor& out) {
    const auto gradients = torch::autograd::grad(
        {out.pow(2).sum()}, inputs, {}, std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({gradients[0].pow(2).sum()}, inputs);
  };
  const auto found =
      penalty(pattern_attention(inputs[0], inputs[1], inputs[2], pattern, 0.5));
  const auto expected = penalty(at::matmul(
      (at::matmul(
           inputs[0] * 0.5, inputs[1].repeat_interleave(2, 1).transpose(2, 3)))
          .masked_fill(
              ~pattern.dense(), -std::numeric_limits<double>::infinity())
          .softmax(-1),
      inputs[2].repeat_interleave(2, 1)));
  for (size_t i = 0; i < found.size(); ++i) {
    expect_close(found[i], expected[i].to(at::kDouble), 1e-4, "second");
  }
}

/// The weights that are dropped in a call, by values that are a unit matrix:
/// what remains of each.
at::Tensor left_weights(
    const at::Tensor& query,
    const at::Tensor& key,
    const AttentionPattern& pattern,
    const AttentionDropout& dropout) {
  const int64_t keys = key.size(2);
  const at::Tensor value =
      at::eye(keys).expand({key.size(0), key.size(1), keys, keys});
  return pattern_attention(query, key, value, pattern, 0.5, dropout);
}

TEST(PatternAttention, DropsWeightsAtRandom) {
  torch::manual_seed(11);
  constexpr int64_t kTokens = 150;
  constexpr double kDrop = 0.3;
  const at::Tensor query = at::randn({2, 4, kTokens, 8});
  const at::Tensor key = at::randn({2, 2, kTokens, 8});
  const auto pattern = AttentionPattern::full(kTokens, kTokens, at::kCPU);
  const at::Tensor all = left_weights(query, key, pattern, {});
  torch::manual_seed(12);
  const at::Tensor left = left_weights(query, key, pattern, {kDrop});
  const at::Tensor kept = left != 0;
  expect_close(
      left,
      (all / (1 - kDrop)).masked_fill(~kept, 0).to(at::kDouble),
      1e-6,
      "left");
  // Shares of single weights and of pairs of neighbors, within 5 deviations.
  const auto expect_share = [](const at::Tensor& is, double share) {
    EXPECT_NEAR(
        is.to(at::kDouble).mean().item<double>(),
        share,
        5 * std::sqrt(share * (1 - share) / static_cast<double>(is.numel())));
  };
  const at::Tensor dropped = ~kept;
  expect_share(dropped, kDrop);
  for (int64_t dim = 0; dim < 4; ++dim) {
    const int64_t count = dropped.size(dim) - 1;
    const at::Tensor both =
        dropped.narrow(dim, 0, count) & dropped.narrow(dim, 1, count);
    expect_share(both, kDrop * kDrop);
  }
  // The next call drops others; the generator's state decides.
  const at::Tensor next = left_weights(query, key, pattern, {kDrop}) == 0;
  expect_share(dropped & next, kDrop * kDrop);
  torch::manual_seed(12);
  EXPECT_TRUE(left_weights(query, key, pattern, {kDrop}).equal(left));
  // Two of the heads, as a rank has them.
  torch::manual_seed(12);
  EXPECT_TRUE(left_weights(
                  query.narrow(1, 2, 2),
                  key.narrow(1, 1, 1),
                  pattern,
                  {.probability = kDrop, .first_head = 2, .heads = 4})
                  .equal(left.narrow(1, 2, 2)));
  EXPECT_EQ(
      left_weights(query, key, pattern, {1}).count_nonzero().item<int>(), 0);
  EXPECT_TRUE(left_weights(query, key, pattern, {1e-12}).equal(all));
  expect_error([&] { left_weights(query, key, pattern, {1.5}); }, {"1.5"});
}

TEST(PatternAttention, GradientsAreThoseOfWhatDropoutLeft) {
  torch::manual_seed(13);
  std::vector<at::Tensor> inputs =
      inputs_of({2, 4, 2, 150, 16, 20}, at::kFloat);
  const auto pattern =
      AttentionPattern::causal(150, 150, at::kCPU)
          .within_documents(
              at::arange(2 * 150).view({2, 150}).div(60, "floor"));
  const AttentionDropout dropout{0.4};
  torch::manual_seed(14);
  const at::Tensor kept =
      left_weights(inputs[0].detach(), inputs[1].detach(), pattern, dropout) !=
      0;
  const auto reference = [&] {
    return at::matmul(
        (at::matmul(
             inputs[0].to(at::kDouble) * 0.5,
             inputs[1].to(at::kDouble).repeat_interleave(2, 1).transpose(2, 3)))
                .masked_fill(
                    ~pattern.dense(), -std::numeric_limits<double>::infinity())
                .softmax(-1) *
            kept / 0.6,
        inputs[2].to(at::kDouble).repeat_interleave(2, 1));
  };
  torch::manual_seed(14);
  const at::Tensor out =
      pattern_attention(inputs[0], inputs[1], inputs[2], pattern, 0.5, dropout);
  expect_close(out, reference(), 1e-5, "out");
  const at::Tensor slope = at::randn_like(out);
  const auto found =
      torch::autograd::grad({out}, inputs, {slope}, /*retain_graph=*/true);
  const auto twice = torch::autograd::grad(
      {out}, inputs, {slope}, std::nullopt, /*create_graph=*/true);
  const auto expected =
      torch::autograd::grad({reference()}, inputs, {slope.to(at::kDouble)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    expect_close(found[i], expected[i].to(at::kDouble), 2e-5, "gradient");
    expect_close(twice[i], expected[i].to(at::kDouble), 2e-5, "differentiable");
  }
}

TEST(PatternAttention, EveryInstructionSetIsTheSameWithinRounding) {
  torch::manual_seed(7);
  const at::Tensor q = at::randn({1, 1, 90, 20});
  const at::Tensor k = at::randn({1, 1, 90, 20});
  const at::Tensor v = at::randn({1, 1, 90, 37});
  const auto pattern = AttentionPattern::causal(90, 90, at::kCPU);
  const at::Tensor expected =
      at::matmul(
          (at::matmul(q, k.transpose(2, 3)) * 0.25)
              .masked_fill(
                  ~pattern.dense(), -std::numeric_limits<double>::infinity())
              .softmax(-1),
          v)
          .to(at::kDouble);
  const DroppedWeights dropped{1U << 30U, 4.0F / 3, 5, 0, 1};
  at::Tensor kept = at::empty({90, 90}, at::kDouble);
  for (int64_t i = 0; i < 90; ++i) {
    for (int64_t j = 0; j < 90; ++j) {
      kept[i][j] =
          keyed_bits(dropped.key_of(0, 0, 90, i), static_cast<uint32_t>(j)) <
                  dropped.threshold
              ? 0
              : 4.0 / 3;
    }
  }
  const at::Tensor expected_left = at::matmul(
      (at::matmul(q, k.transpose(2, 3)) * 0.25)
              .masked_fill(
                  ~pattern.dense(), -std::numeric_limits<double>::infinity())
              .softmax(-1) *
          kept,
      v.to(at::kDouble));
  const at::Tensor first = pattern.first.expand({1, 90}).contiguous();
  const at::Tensor end = pattern.end.contiguous();
  const AttentionRow row{
      .first = first.const_data_ptr<int32_t>(),
      .end = end.const_data_ptr<int32_t>(),
      .seen = nullptr,
      .global = nullptr};
  const auto schedule = AttentionSchedule::of(row, 90, 90);
  ASSERT_EQ(schedule.components.size(), 1);
  const auto matrix = [](const at::Tensor& x) {
    return AttentionMatrix{
        const_cast<void*>(x.const_data_ptr()),
        x.stride(0),
        x.stride(1),
        x.stride(2)};
  };
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      continue;
    }
    const at::Tensor out = at::full({1, 1, 90, 37}, -7.0);
    const at::Tensor sums = at::empty({90});
    const at::Tensor scratch = at::empty({attention_scratch(90, 20, 37)});
    AttentionArguments all{
        .type = LowPrecision::kNone,
        .group = 1,
        .heads = 1,
        .queries = 90,
        .features = 20,
        .value_features = 37,
        .scale = 0.25F,
        .query = matrix(q),
        .key = matrix(k),
        .value = matrix(v),
        .out = matrix(out),
        .log_sums = sums.mutable_data_ptr<float>()};
    attention_kernel(isa).forward(
        all,
        {0, 0, row, schedule.components[0], schedule.tiles.data()},
        scratch.mutable_data_ptr<float>());
    expect_close(out, expected, 1e-5, std::to_string(static_cast<int>(isa)));
    all.dropped = dropped;
    attention_kernel(isa).forward(
        all,
        {0, 0, row, schedule.components[0], schedule.tiles.data()},
        scratch.mutable_data_ptr<float>());
    expect_close(
        out, expected_left, 1e-5, std::to_string(static_cast<int>(isa)));
  }
}

TEST(PatternAttention, SaysWhatItDoesNotTake) {
  const at::Tensor x = at::zeros({1, 3, 5, 4});
  const auto pattern = AttentionPattern::causal(5, 5, at::kCPU);
  expect_error(
      [&] { pattern_attention(x, x.narrow(1, 0, 2), x, pattern, 1); },
      {"pattern_attention", "[1, 3, 5, 4]", "[1, 2, 5, 4]", "divides"});
  expect_error(
      [&] { pattern_attention(x, x, x.to(at::kBFloat16), pattern, 1); },
      {"pattern_attention", "BFloat16", "one dtype"});
  expect_error(
      [&] {
        pattern_attention(x, x, x, AttentionPattern::causal(4, 5, at::kCPU), 1);
      },
      {"pattern_attention", "4 queries", "5 keys"});
  AttentionPattern wrong = pattern;
  wrong.end = pattern.end + 1;
  expect_error(
      [&] { pattern_attention(x, x, x, wrong, 1); },
      {"query 4", "0 .. 5", "there are 5"});
}

TEST(PatternAttention, DryRunsKnowItsMemoryAndWork) {
  install_cpu_memory_counter();
  constexpr int64_t kLength = 512;
  for (const auto& [dtype, dropout] :
       {std::pair(at::kFloat, 0.0),
        std::pair(at::kBFloat16, 0.0),
        std::pair(at::kFloat, 0.1)}) {
    const auto step = [&, dtype = dtype, dropout = dropout] {
      const at::Tensor ids = at::zeros({2, kLength}, at::kLong);
      const auto pattern = AttentionPattern::causal(kLength, kLength, at::kCPU)
                               .within_documents(ids);
      const auto matrix = [&](int64_t heads) {
        return at::zeros({2, heads, kLength, 24}, dtype).requires_grad_();
      };
      const at::Tensor query = matrix(4);
      const at::Tensor out = pattern_attention(
          query, matrix(2), matrix(2), pattern, 0.5, {dropout});
      out.backward(out.detach());
    };
    step(); // what is made once
    const int64_t before = cpu_bytes_live();
    reset_cpu_bytes_peak();
    step();
    const auto measured = static_cast<double>(cpu_bytes_peak() - before);
    const at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = generator.get_state();
    DryRun run;
    step();
    EXPECT_TRUE(generator.get_state().equal(state)); // nothing is drawn
    // Bounds of intervals are copied for each batch row.
    EXPECT_NEAR(
        static_cast<double>(run.heap().peak_bytes()),
        measured,
        2.0 * 2 * kLength * sizeof(int32_t) + 512);
    constexpr double kProduct = 2.0 * 2 * 4 * kLength * kLength * 24;
    double forward = 0;
    double backward = 0;
    for (const OperatorWork& work : run.work()) {
      const double seen = work.flops - work.masked_flops;
      forward += work.name == "tessera::pattern_attention" ? seen : 0;
      backward += work.name == "tessera::pattern_attention_backward" ? seen : 0;
    }
    EXPECT_EQ(forward, kProduct); // half of two products
    EXPECT_EQ(backward, 2.5 * kProduct);
  }
}

} // namespace

} // namespace tessera::runtime::pattern_attention_test

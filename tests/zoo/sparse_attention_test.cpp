// SPDX-License-Identifier: Apache-2.0
// Attention that leaves something out, against attention with a mask: windows
// with global tokens. What it keeps in memory grows with the length, not with
// its square.

#include "support/expect_error.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/zoo/layers/banded_attention.h"
#include "zoo/device_comparison.h"
#include "zoo/tensor_support.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace tessera::zoo::sparse_attention_test {
namespace {

constexpr int64_t kRows = 2;
constexpr int64_t kHeads = 4;
constexpr int64_t kFeatures = 8; ///< of a head

constexpr const char* kWindowedMistral = R"({"model_type": "mistral",
    "architectures": ["MistralForCausalLM"], "vocab_size": 29,
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 256, "sliding_window": 20,
    "initializer_range": 0.3})";

AttentionCall random_call(int64_t length, int64_t kv_heads = kHeads) {
  torch::manual_seed(3);
  const auto random = [&](int64_t heads) {
    return torch::randn({kRows, heads, length, kFeatures}).requires_grad_();
  };
  AttentionCall call{random(kHeads), random(kv_heads), random(kv_heads)};
  call.scale = 0.4;
  return call;
}

/// Results of `tokens` [B, S], and the gradients of a loss that weighs them.
std::vector<torch::Tensor> results(
    const AttentionFunction& function,
    const AttentionCall& call,
    const torch::Tensor& tokens) {
  torch::Tensor out = function(call) * tokens.unsqueeze(1).unsqueeze(-1);
  const torch::Tensor weights =
      torch::linspace(-1, 1, out.numel()).view_as(out);
  std::vector<torch::Tensor> all = torch::autograd::grad(
      {(out * weights).sum()}, {call.query, call.key, call.value});
  all.push_back(out);
  return all;
}

void expect_same(
    const std::vector<torch::Tensor>& found,
    const std::vector<torch::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(found[i], expected[i]);
  }
}

/// Bytes that forward and backward have alive at most, beside what was.
int64_t peak_of(const std::function<torch::Tensor()>& forward) {
  const int64_t before = runtime::cpu_bytes_live();
  runtime::reset_cpu_bytes_peak();
  forward().sum().backward();
  return runtime::cpu_bytes_peak() - before;
}

} // namespace

TEST(BandedAttention, EqualsAttentionWithAMask) {
  constexpr int64_t kLength = 23;
  torch::Tensor mask = torch::ones({kRows, kLength}, torch::kLong);
  mask[0].narrow(0, 19, 4).zero_();
  mask[1].narrow(0, 0, 3).zero_();
  torch::Tensor global = torch::zeros_like(mask);
  global[0][0] = global[0][11] = global[0][20] = 1; // the last one is padding
  global[1][22] = 1;
  for (const bool some : {true, false}) {
    const BandedTokens tokens =
        BandedTokens::of(mask, some ? global : torch::Tensor(), mask);
    EXPECT_EQ(tokens.global_positions.size(1), some ? 2 : 0);
    for (const int64_t reach : {1, 4, 11, 40}) {
      SCOPED_TRACE(reach);
      AttentionCall dense = random_call(kLength);
      const torch::Tensor seen = mask.ne(0).unsqueeze(1).unsqueeze(1);
      dense.pattern = AttentionPattern::full(kLength, kLength, torch::kCPU)
                          .within_window(reach + 1)
                          .with_global(some ? global : torch::zeros_like(mask))
                          .without_padding(mask);
      const AttentionCall call = random_call(kLength);
      const auto banded = [&](const AttentionCall& one) {
        return banded_attention(one, tokens, reach, fused_attention);
      };
      // The same by the kernel of patterns.
      AttentionCall skipping = random_call(kLength);
      skipping.pattern = dense.pattern;
      EXPECT_TRUE(skips_hidden_pairs(fused_attention, skipping));
      EXPECT_FALSE(skips_hidden_pairs(plain_attention, skipping));
      expect_same(
          results(fused_attention, skipping, mask),
          results(plain_attention, dense, mask));
      // Of tokens that have a result: global ones have theirs elsewhere.
      expect_same(
          results(banded, call, tokens.local),
          results(plain_attention, dense, tokens.local));
      EXPECT_EQ(
          (banded(call) * seen.logical_not().transpose(2, 3))
              .abs()
              .max()
              .item<float>(),
          0);
    }
  }
}

TEST(BandedAttention, DropsWeightsOnlyInTraining) {
  AttentionOptions options;
  options.features = 16;
  options.heads = 2;
  options.dropout = 0.5;
  BandedAttention attention(LayerContext(), options, 3);
  const torch::Tensor x = torch::randn({2, 10, 16});
  const BandedTokens tokens = BandedTokens::of(
      {}, torch::eye(2, 10), torch::zeros({2, 10}, torch::kLong));
  EXPECT_FALSE(
      attention->forward(x, tokens).equal(attention->forward(x, tokens)));
  attention->eval();
  EXPECT_TRUE(
      attention->forward(x, tokens).equal(attention->forward(x, tokens)));
}

// With weights of all pairs four times the length would be sixteen times the
// memory; the plain function keeps the weights that there are.
TEST(BandedAttention, KeepsMemoryThatGrowsWithTheLength) {
  runtime::install_cpu_memory_counter();
  AttentionOptions options;
  options.features = 32;
  options.heads = kHeads;
  for (const auto& function : {fused_attention, plain_attention}) {
    options.function = function;
    BandedAttention attention(LayerContext(), options, 16);
    const auto peak = [&](int64_t length) {
      const torch::Tensor ids = torch::zeros({1, length}, torch::kLong);
      torch::Tensor global = torch::zeros_like(ids);
      global[0][0] = 1;
      const BandedTokens tokens = BandedTokens::of({}, global, ids);
      const torch::Tensor x = torch::randn({1, length, options.features});
      attention->forward(x, tokens).sum().backward(); // makes gradients
      return peak_of([&] { return attention->forward(x, tokens); });
    };
    const int64_t shorter = peak(512);
    const int64_t longer = peak(2048);
    EXPECT_GT(longer, 2 * shorter);
    EXPECT_LT(longer, 5 * shorter);
  }
}

/// Results of operators with so many elements, also of those within kernels.
class LargeResults {
 public:
  explicit LargeResults(int64_t numel) {
    least = numel;
    count = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(nullptr, &look).needsOutputs(true));
  }
  LargeResults(const LargeResults&) = delete;
  LargeResults& operator=(const LargeResults&) = delete;
  ~LargeResults() {
    at::removeCallback(handle_);
  }

  inline static int64_t count = 0;

 private:
  static void look(const at::RecordFunction& call, at::ObserverContext*) {
    for (const c10::IValue& value : call.outputs()) {
      count += value.isTensor() && value.toTensor().defined() &&
                       value.toTensor().numel() >= least
                   ? 1
                   : 0;
    }
  }

  inline static int64_t least = 0;
  at::CallbackHandle handle_;
};

/// Rows of documents of different lengths, in `length` tokens.
ModelInput packed_rows(int64_t length) {
  torch::manual_seed(4);
  ModelInput input;
  input.input_ids = torch::randint(0, 29, {kRows, length}, torch::kLong);
  input.labels = input.input_ids;
  input.loss_only = true;
  const torch::Tensor places = torch::arange(length).repeat({kRows, 1});
  input.others["document_ids"] = places.div(97, "floor");
  input.position_ids = places.remainder(97);
  return input;
}

TEST(PackedDocuments, NeedNothingForEveryPairOfTokens) {
  constexpr int64_t kLength = 1024;
  const auto model = device_comparison::model_on(
      torch::kCPU, device_comparison::kGroupedLlama);
  const ModelInput input = packed_rows(kLength);
  const auto count = [&](bool fused) {
    runtime::use_fused_operators(fused);
    {
      const LargeResults large(kLength * kLength);
      model->forward(input).loss.backward();
    }
    runtime::use_fused_operators(true);
    return LargeResults::count;
  };
  EXPECT_EQ(count(true), 0);
  EXPECT_GT(count(false), 0);
}

// In float32, by the kernel of patterns: what tests in float64 do not see.
TEST(PackedDocuments, AreThoseAlone) {
  for (const char* config :
       {device_comparison::kGroupedLlama, kWindowedMistral}) {
    const auto model = device_comparison::model_on(torch::kCPU, config);
    ModelInput packed = packed_rows(200);
    packed.loss_only = false;
    packed.labels = torch::Tensor();
    const torch::Tensor all = model->forward(packed).logits;
    packed.others.clear();
    const torch::Tensor mixed = model->forward(packed).logits;
    for (const int64_t begin : {0, 97, 194}) {
      const int64_t length = std::min<int64_t>(97, 200 - begin);
      ModelInput alone;
      alone.input_ids = packed.input_ids.narrow(1, begin, length);
      const torch::Tensor expected = model->forward(alone).logits;
      const auto own = [&](const torch::Tensor& x) {
        return x.narrow(1, begin, length);
      };
      EXPECT_LT((own(all) - expected).abs().max().item<double>(), 1e-4);
      if (begin > 0) {
        EXPECT_GT((own(mixed) - expected).abs().max().item<double>(), 1e-2);
      }
    }
  }
}

} // namespace tessera::zoo::sparse_attention_test

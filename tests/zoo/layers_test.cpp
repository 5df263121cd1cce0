// SPDX-License-Identifier: Apache-2.0
// The zoo's layers in a plain program: no init(), no engine.

#include "support/expect_error.h"
#include "tessera/zoo/layers/activation.h"
#include "tessera/zoo/layers/attention.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/layers/rotary.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "zoo/support.h"
#include "zoo/tensor_support.h"

#include <limits>

namespace tessera::zoo::layers_test {
namespace {

runtime::SafetensorsFile reference() {
  return runtime::SafetensorsFile::open(fixture("layers.safetensors"));
}

const LayerContext kPlain;

AttentionOptions attention_options() {
  AttentionOptions options;
  options.features = 24;
  options.heads = 6;
  options.kv_heads = 2;
  options.deviation = 0.3;
  return options;
}

TransformerLayerOptions layer_options() {
  TransformerLayerOptions options;
  options.norm.features = 24;
  options.attention = attention_options();
  options.feed_forward.features = 24;
  options.feed_forward.inner = 40;
  options.feed_forward.deviation = 0.3;
  return options;
}

} // namespace

TEST(Activation, EqualsTransformers) {
  const auto file = reference();
  const torch::Tensor x = fixture_tensor(file, "x");
  size_t compared = 0;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.starts_with("act.")) {
      continue;
    }
    SCOPED_TRACE(entry.name);
    expect_near(
        activation(entry.name.substr(4))(x), fixture_tensor(file, entry.name));
    ++compared;
  }
  // Ours are those of transformers, and no others.
  EXPECT_EQ(compared, activation_names().size());
  expect_error([] { activation("relu3"); }, {"'relu3'", "'relu"});
}

TEST(Positions, EqualTransformers) {
  const auto file = reference();
  expect_near(
      sinusoid_table(40, 12, SinusoidLayout::kSinesThenCosines),
      fixture_tensor(file, "sinusoid"));
  const torch::Tensor pairs = sinusoid_table(40, 12, SinusoidLayout::kPairs);
  expect_near(
      torch::cat({pairs.slice(1, 0, 12, 2), pairs.slice(1, 1, 12, 2)}, 1),
      fixture_tensor(file, "sinusoid"));
  for (const bool both : {true, false}) {
    const torch::Tensor found =
        relative_buckets(150, 150, {.bidirectional = both}, torch::kCPU);
    // By distance, from -149 to 149: those of the last query and the first.
    EXPECT_TRUE(torch::cat({found[149], found[0].slice(0, 1)})
                    .equal(fixture_tensor(
                        file, both ? "buckets.both" : "buckets.past")));
  }
}

// Those of CPM-Ant, which are CPM-3's.
TEST(Positions, HaveBucketsOfSegments) {
  const auto file = reference();
  const at::Tensor queries = fixture_tensor(file, "segments.queries");
  const at::Tensor keys = fixture_tensor(file, "segments.keys");
  const at::Tensor distances = relative_buckets(
      50, 50, {.buckets = 16, .max_distance = 20}, torch::kCPU);
  const at::Tensor rows = torch::where(
      queries.unsqueeze(2).eq(keys.unsqueeze(1)),
      distances,
      16 + segment_buckets(queries, keys, 4));
  EXPECT_TRUE(fixture_tensor(file, "segments.weight")
                  .index({rows})
                  .permute({0, 3, 1, 2})
                  .equal(fixture_tensor(file, "segments.bias")));
}

TEST(Rotary, ScalesAsTransformers) {
  const auto file = reference();
  RotaryOptions options;
  options.features = 64;
  options.max_positions = 2048;
  const auto compare = [&](const std::string& name) {
    SCOPED_TRACE(name);
    const RotaryFrequencies found = rotary_frequencies(options, 5000);
    const torch::Tensor expected = fixture_tensor(file, "rope." + name);
    // Relative, since frequencies span four decades: float32 powers.
    expect_near(found.inverse / expected.narrow(0, 0, 32), torch::ones({32}));
    EXPECT_NEAR(found.amplitude, expected[32].item<double>(), 1e-6);
  };
  options.scaling = {.kind = RotaryScalingKind::kLinear, .factor = 4};
  compare("linear");
  options.scaling = {.kind = RotaryScalingKind::kDynamic, .factor = 2};
  compare("dynamic");
  options.scaling = {
      .kind = RotaryScalingKind::kLlama3,
      .factor = 8,
      .original_positions = 8192};
  compare("llama3");
  options.scaling = {
      .kind = RotaryScalingKind::kYarn,
      .factor = 4,
      .original_positions = 1024};
  compare("yarn");
  options.scaling.factor = 40;
  options.scaling.mscale = 1;
  options.scaling.mscale_all_features = 0.8;
  options.scaling.beta_fast = 24;
  options.scaling.beta_slow = 2;
  options.scaling.truncate = false;
  compare("yarn_mscale");
  options.features = 7;
  expect_error([&] { rotary_frequencies(options, 9); }, {"7", "even"});
}

// What rotary positions are for: products depend on distances alone.
TEST(Rotary, ProductsDependOnDistances) {
  torch::manual_seed(1);
  for (const auto layout : {RotaryLayout::kHalves, RotaryLayout::kPairs}) {
    const RotaryOptions options{.features = 8, .layout = layout};
    const torch::Tensor x = torch::randn({1, 1, 1, 12}).expand({1, 1, 9, 12});
    const auto rotated = [&](int64_t shift) {
      return rotate(
          x,
          rotary_tables(
              options,
              (torch::arange(9) + shift).unsqueeze(0),
              9 + shift,
              torch::kFloat));
    };
    const torch::Tensor at_0 = rotated(0);
    const torch::Tensor at_5 = rotated(5);
    expect_near(
        torch::matmul(at_5, at_5.transpose(2, 3)),
        torch::matmul(at_0, at_0.transpose(2, 3)));
    EXPECT_TRUE(at_5.narrow(3, 8, 4).equal(x.narrow(3, 8, 4)));
    EXPECT_FALSE(at_5.allclose(at_0));
  }
  // One layout is the other with its features in another order.
  const torch::Tensor y = torch::randn({1, 1, 9, 8});
  const torch::Tensor order = torch::tensor({0, 2, 4, 6, 1, 3, 5, 7});
  const torch::Tensor places = torch::arange(9).unsqueeze(0);
  RotaryOptions options{.features = 8};
  const torch::Tensor halves = rotate(
      y.index_select(3, order),
      rotary_tables(options, places, 9, torch::kFloat));
  options.layout = RotaryLayout::kPairs;
  expect_near(
      rotate(y, rotary_tables(options, places, 9, torch::kFloat))
          .index_select(3, order),
      halves);
}

TEST(Positions, DoNotCountPadding) {
  EXPECT_TRUE(positions_without_padding(torch::tensor({{0, 1, 0, 1}}))
                  .equal(torch::tensor({{-1, 0, -1, 1}})));
}

// The fused kernels and the plain products, with everything that a model uses.
TEST(Attention, FunctionsAgree) {
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({2, 7, 24});
  const torch::Tensor memory = torch::randn({2, 5, 10});
  const torch::Tensor mask = with_safe_rows(torch::rand({2, 1, 7, 7}).gt(0.4));
  const torch::Tensor own = mask | torch::eye(7, torch::kBool);
  const torch::Tensor bias = torch::randn({1, 6, 7, 7});
  const AttentionPattern pattern =
      AttentionPattern::causal(7, 7, torch::kCPU).within_window(3);
  const torch::Tensor places = torch::arange(7).unsqueeze(0);
  const RotaryTables rotary =
      rotary_tables({.features = 4}, places, 7, torch::kFloat);
  struct Case {
    const char* name;
    bool causal;
    AttentionInput input;
  };
  for (const Case& one :
       {Case{"bare", false, {}},
        Case{"causal", true, {}},
        Case{"mask", false, {{}, {}, mask}},
        Case{"bias", false, {{}, {}, {}, bias}},
        Case{"mask and bias", false, {{}, {}, mask, bias}},
        Case{"pattern", true, {{}, pattern}},
        Case{"pattern and bias", true, {{}, pattern, {}, bias}},
        Case{"pattern, mask and bias", false, {{}, pattern, own, bias}},
        Case{"rotary", true, {{}, {}, {}, {}, rotary}},
        Case{"cross", false, {memory}}}) {
    SCOPED_TRACE(one.name);
    AttentionOptions options = attention_options();
    options.causal = one.causal;
    options.query_key_norm = NormOptions{.kind = NormKind::kRmsNorm};
    options.memory_features = one.input.memory.defined() ? 10 : 0;
    std::vector<torch::Tensor> results;
    std::vector<torch::Tensor> gradients;
    for (const auto& function : {fused_attention, plain_attention}) {
      torch::manual_seed(3);
      options.function = function;
      Attention attention(kPlain, options);
      results.push_back(attention->forward(x, one.input));
      results.back().square().sum().backward();
      gradients.push_back(attention->named_parameters()["key.weight"].grad());
    }
    expect_near(results[0], results[1]);
    expect_near(gradients[0], gradients[1]);
  }
}

TEST(Attention, DropsWeightsOnlyInTraining) {
  AttentionOptions options = attention_options();
  options.dropout = 0.5;
  Attention attention(kPlain, options);
  const torch::Tensor x = torch::randn({2, 7, 24});
  EXPECT_FALSE(attention->forward(x).equal(attention->forward(x)));
  attention->eval();
  EXPECT_TRUE(attention->forward(x).equal(attention->forward(x)));
}

TEST(Attention, NamesWhatDoesNotDivide) {
  AttentionOptions options = attention_options();
  options.heads = 5;
  expect_error([&] { Attention(kPlain, options); }, {"24", "5 heads"});
  options.heads = 6;
  options.kv_heads = 4;
  expect_error([&] { Attention(kPlain, options); }, {"4", "6 heads"});
}

TEST(TransformerLayer, PlacesItsNorms) {
  torch::manual_seed(4);
  const torch::Tensor x = torch::randn({2, 5, 24});
  for (const auto placement :
       {NormPlacement::kPre,
        NormPlacement::kPost,
        NormPlacement::kSandwich,
        NormPlacement::kBranch}) {
    TransformerLayerOptions options = layer_options();
    options.placement = placement;
    TransformerLayer layer(kPlain, options);
    const auto children = layer->named_children();
    const auto attention = [&](const torch::Tensor& y) {
      return children["attention"]->as<AttentionImpl>()->forward(y);
    };
    const auto feed_forward = [&](const torch::Tensor& y) {
      return children["feed_forward"]->as<FeedForwardImpl>()->forward(y);
    };
    const auto norm = [&](const char* name, const torch::Tensor& y) {
      auto* module = children[name]->as<NormImpl>();
      return module->forward(y);
    };
    torch::Tensor expected;
    switch (placement) {
      case NormPlacement::kPre:
        expected = x + attention(norm("attention_norm", x));
        expected = expected + feed_forward(norm("feed_forward_norm", expected));
        break;
      case NormPlacement::kPost:
        expected = norm("attention_norm", x + attention(x));
        expected = norm("feed_forward_norm", expected + feed_forward(expected));
        break;
      case NormPlacement::kBranch:
        expected = x + norm("attention_norm", attention(x));
        expected = expected + norm("feed_forward_norm", feed_forward(expected));
        break;
      case NormPlacement::kSandwich:
        expected =
            x +
            norm("attention_output_norm", attention(norm("attention_norm", x)));
        expected =
            expected + norm(
                           "feed_forward_output_norm",
                           feed_forward(norm("feed_forward_norm", expected)));
        break;
    }
    expect_near(layer->forward(x), expected);
  }
}

TEST(TransformerLayer, LooksIntoAMemory) {
  torch::manual_seed(5);
  TransformerLayerOptions options = layer_options();
  options.attention.causal = true;
  options.cross_attention = attention_options();
  TransformerLayer layer(kPlain, options);
  const torch::Tensor x = torch::randn({2, 5, 24});
  const torch::Tensor memory = torch::randn({2, 4, 24});
  torch::Tensor other = memory.clone();
  other.select(1, 3).zero_();
  const AttentionPattern pattern =
      padding_pattern(torch::tensor({{1, 1, 1, 0}, {1, 1, 1, 0}}), 5);
  LayerInput input;
  input.memory = memory;
  const torch::Tensor with = layer->forward(x, input);
  input.memory = other;
  EXPECT_FALSE(layer->forward(x, input).allclose(with));
  input.memory_pattern = pattern;
  const torch::Tensor blind = layer->forward(x, input);
  input.memory = memory;
  expect_near(layer->forward(x, input), blind);
  expect_error([&] { layer->forward(x); }, {"LayerInput::memory"});
}

TEST(Experts, AddUpWhatTheirTokensChose) {
  torch::manual_seed(6);
  ExpertsOptions options;
  options.expert = layer_options().feed_forward;
  options.expert.gated = true;
  options.experts = 5;
  options.experts_per_token = 2;
  options.shared = options.expert;
  for (const bool normalise : {false, true}) {
    options.normalise = normalise;
    Experts experts(kPlain, options);
    const torch::Tensor x = torch::randn({2, 3, 24});
    const auto parameters = experts->named_parameters();
    const auto modules = experts->named_modules();
    const torch::Tensor shares =
        torch::softmax(torch::matmul(x, parameters["router.weight"].t()), -1);
    torch::Tensor expected =
        torch::sigmoid(torch::matmul(x, parameters["shared_gate.weight"].t())) *
        modules["shared"]->as<FeedForwardImpl>()->forward(x);
    const torch::Tensor second = std::get<0>(shares.topk(2)).select(-1, 1);
    const torch::Tensor sum = std::get<0>(shares.topk(2)).sum(-1);
    for (int64_t e = 0; e < 5; ++e) {
      const torch::Tensor share = shares.select(-1, e);
      torch::Tensor weight = share * share.ge(second);
      if (normalise) {
        weight = weight / sum;
      }
      expected = expected +
                 weight.unsqueeze(-1) * modules["experts." + std::to_string(e)]
                                            ->as<FeedForwardImpl>()
                                            ->forward(x);
    }
    expect_near(experts->forward(x), expected);
  }
}

TEST(Losses, EqualTheirFormulas) {
  torch::manual_seed(7);
  const torch::Tensor logits = torch::randn({2, 3, 5}, torch::kDouble);
  const torch::Tensor targets = torch::tensor({{0, 4, -7}, {2, -7, 1}});
  const torch::Tensor shares = torch::log_softmax(logits, -1);
  double sum = 0;
  int count = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 3; ++s) {
      const auto target = targets[b][s].item<int64_t>();
      if (target >= 0) {
        sum -= 0.9 * shares[b][s][target].item<double>() +
               0.1 * shares[b][s].mean().item<double>();
        ++count;
      }
    }
  }
  EXPECT_NEAR(
      cross_entropy(
          logits, targets, {.ignore_index = -7, .label_smoothing = 0.1})
          .item<double>(),
      sum / count,
      1e-12);
  EXPECT_TRUE(next_token_targets(torch::tensor({{4, 5, 6}}))
                  .equal(torch::tensor({{5, 6, -100}})));
  const torch::Tensor teacher = torch::randn({2, 3, 5}, torch::kDouble);
  const torch::Tensor p = torch::softmax(teacher / 2, -1);
  const torch::Tensor q = torch::softmax(logits / 2, -1);
  EXPECT_NEAR(
      distillation_loss(logits, teacher, 2).item<double>(),
      4 * (p * (p / q).log()).sum(-1).mean().item<double>(),
      1e-12);
  const torch::Tensor counts = targets.ge(0);
  EXPECT_NEAR(
      distillation_loss(logits, teacher, 2, counts).item<double>(),
      4 * (p * (p / q).log()).sum(-1).index({counts}).mean().item<double>(),
      1e-12);
  // The mean over none is 0, and so are its gradients.
  const torch::Tensor some = torch::randn({2, 3, 5}).requires_grad_();
  const torch::Tensor none = torch::full({2, 3}, -100, torch::kLong);
  for (const double smoothing : {0.0, 0.1}) {
    const torch::Tensor loss =
        cross_entropy(some, none, {.label_smoothing = smoothing});
    EXPECT_EQ(loss.item<float>(), 0);
    some.mutable_grad() = torch::Tensor();
    loss.backward();
    EXPECT_TRUE(some.grad().equal(torch::zeros_like(some)));
  }
  EXPECT_EQ(
      distillation_loss(logits, teacher, 2, none.ge(0)).item<double>(), 0);
  expect_error(
      [&] { cross_entropy(logits, targets[0]); }, {"[2, 3, 5]", "[3]"});
  expect_error(
      [&] { distillation_loss(logits, teacher[0]); }, {"[2, 3, 5]", "[3, 5]"});
}

} // namespace tessera::zoo::layers_test

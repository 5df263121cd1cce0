// SPDX-License-Identifier: Apache-2.0
// Sums, dropout and norms of transformer layers by our kernel and by LibTorch's
// operators.
#include "support/cast_counter.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/zoo/layers/transformer_layer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo::residual_norms_test {

namespace {

constexpr int64_t kFeatures = 24;

struct Case {
  NormPlacement placement = NormPlacement::kPre;
  NormKind kind = NormKind::kLayerNorm;
  double dropout = 0;
  double scale = 1;
  double weight_offset = 0;
};

std::vector<Case> all_cases() {
  return {
      {},
      {.dropout = 0.4},
      {.dropout = 0.4, .scale = 0.5},
      {.kind = NormKind::kRmsNorm},
      {.kind = NormKind::kRmsNorm, .dropout = 0.4, .weight_offset = 1},
      {.placement = NormPlacement::kPost, .dropout = 0.4},
      {.placement = NormPlacement::kSandwich, .dropout = 0.4},
      {.placement = NormPlacement::kBranch,
       .kind = NormKind::kRmsNorm,
       .dropout = 0.4}};
}

TransformerLayerOptions options_of(const Case& which) {
  TransformerLayerOptions options;
  options.placement = which.placement;
  options.norm.kind = which.kind;
  options.norm.features = kFeatures;
  options.norm.weight_offset = which.weight_offset;
  options.attention.features = kFeatures;
  options.attention.heads = 4;
  options.feed_forward.features = kFeatures;
  options.feed_forward.inner = 40;
  options.feed_forward.activation = "silu";
  options.dropout = which.dropout;
  options.residual_scale = which.scale;
  return options;
}

/// The layer by LibTorch's operators, one after the other.
at::Tensor composed(TransformerLayer& layer, const Case& which, at::Tensor x) {
  auto children = layer->named_children();
  const auto norm = [&](const std::string& name, const at::Tensor& y) {
    const auto parameters = children[name]->named_parameters();
    const at::Tensor weight = parameters["weight"];
    if (which.kind == NormKind::kLayerNorm) {
      return at::layer_norm(y, {kFeatures}, weight, parameters["bias"], 1e-5);
    }
    if (which.weight_offset == 0) {
      return at::rms_norm(y, {kFeatures}, weight, 1e-5);
    }
    return y * at::rsqrt(y.square().mean(-1, true) + 1e-5) *
           (weight + which.weight_offset);
  };
  const auto half = [&](const std::string& name,
                        const std::function<at::Tensor(at::Tensor)>& part) {
    const auto dropped = [&](const at::Tensor& y) {
      const at::Tensor kept =
          which.dropout == 0 ? y : at::dropout(y, which.dropout, true);
      return which.scale == 1 ? kept : kept * which.scale;
    };
    switch (which.placement) {
      case NormPlacement::kPre:
        x = x + dropped(part(norm(name + "_norm", x)));
        break;
      case NormPlacement::kPost:
        x = norm(name + "_norm", x + dropped(part(x)));
        break;
      case NormPlacement::kSandwich:
        x = x +
            dropped(norm(name + "_output_norm", part(norm(name + "_norm", x))));
        break;
      case NormPlacement::kBranch:
        x = x + dropped(norm(name + "_norm", part(x)));
        break;
    }
  };
  half("attention", [&](const at::Tensor& y) {
    return children["attention"]->as<AttentionImpl>()->forward(y);
  });
  half("feed_forward", [&](const at::Tensor& y) {
    return children["feed_forward"]->as<FeedForwardImpl>()->forward(y);
  });
  return x;
}

/// The result and all gradients.
std::vector<at::Tensor> run(
    TransformerLayer& layer,
    const std::function<at::Tensor(const at::Tensor&)>& forward) {
  layer->zero_grad();
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({3, 5, kFeatures}).requires_grad_();
  const at::Tensor y = forward(x);
  (y * torch::randn({3, 5, kFeatures})).sum().backward();
  std::vector<at::Tensor> results = {y.detach(), x.grad()};
  for (const at::Tensor& parameter : layer->parameters()) {
    results.push_back(parameter.grad().clone());
  }
  return results;
}

/// `fused` of a configuration, until the end of a scope.
class FusedScope {
 public:
  explicit FusedScope(bool fused) {
    runtime::use_fused_operators(fused);
  }
  ~FusedScope() {
    runtime::use_fused_operators(true);
  }
  FusedScope(const FusedScope&) = delete;
  FusedScope& operator=(const FusedScope&) = delete;
};

} // namespace

TEST(ResidualNorms, OffHaveTheBitsOfLibTorchsOperatorsAndAutoDropsTheSame) {
  for (const Case& which : all_cases()) {
    SCOPED_TRACE(c10::str(
        static_cast<int>(which.placement),
        " ",
        static_cast<int>(which.kind),
        " ",
        which.dropout,
        " ",
        which.scale));
    torch::manual_seed(4);
    TransformerLayer layer(LayerContext(), options_of(which));
    {
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : layer->named_parameters()) {
        if (parameter.key().find("norm") != std::string::npos) {
          parameter.value().add_(torch::randn({kFeatures}) * 0.3);
        }
      }
    }
    const auto forward = [&](const at::Tensor& x) { return layer->forward(x); };
    std::vector<at::Tensor> off;
    std::vector<at::Tensor> by_hand;
    {
      const FusedScope scope(false);
      off = run(layer, forward);
      by_hand = run(layer, [&](const at::Tensor& x) {
        return composed(layer, which, x);
      });
    }
    const auto found = run(layer, forward);
    bool differs = false;
    double largest = 0;
    for (const at::Tensor& one : off) {
      largest = std::max(largest, one.abs().max().item<double>());
    }
    for (size_t i = 0; i < off.size(); ++i) {
      EXPECT_TRUE(off[i].equal(by_hand[i])) << i;
      EXPECT_LE(
          (found[i] - off[i]).abs().max().item<double>(),
          // The gradient of a key's bias is 0 but for rounding.
          2e-5 * off[i].abs().max().item<double>() + 1e-7 * largest)
          << i;
      differs = differs || !found[i].equal(off[i]);
    }
    EXPECT_TRUE(differs); // or this compares operators with themselves
  }
}

TEST(ResidualNorms, TakesNoFloat32CopiesOfActivationsOf16Bits) {
  tests::run_ranks(1, [](World&) {
    torch::manual_seed(4);
    TransformerLayer layer(
        LayerContext(), options_of({.kind = NormKind::kRmsNorm}));
    torch::manual_seed(9);
    const at::Tensor x = torch::randn({3, 5, kFeatures});
    const at::Tensor exact = layer->forward(x).detach();
    EngineOptions options;
    options.precision.parameters = at::kBFloat16;
    options.log_memory = false;
    auto engine = wrap(layer, options);
    const tests::CastCounter casts(x.numel());
    const at::Tensor input = x.to(at::kBFloat16).requires_grad_();
    const int64_t before = casts.count();
    const at::Tensor y = layer->forward(input);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LE(
        (y.to(at::kFloat) - exact).abs().max().item<double>(),
        0.03 * exact.abs().max().item<double>());
    const int64_t after = casts.count(); // one of them is the line above
    engine.backward(y.sum());
    EXPECT_EQ(after - before, 1);
    EXPECT_EQ(casts.count(), after);
  });
}

} // namespace tessera::zoo::residual_norms_test

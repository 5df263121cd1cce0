// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transformer as an author writes it who has never heard of tensor
// parallelism: sizes of heads in views, masks, dropout, positions, a pooled
// first token and a loss of its own.

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace tessera {

struct StrangeModelOptions {
  int64_t vocab = 37;
  int64_t features = 24;
  int64_t heads = 6;
  int64_t key_heads = 6;
  int64_t inner = 50;
  int64_t length = 8;
  double dropout = 0;
  bool fused_attention = false;
  bool tied = false;
};

struct StrangeAttentionImpl : torch::nn::Module {
  explicit StrangeAttentionImpl(const StrangeModelOptions& options)
      : options(options),
        n(options.features / options.heads),
        q_proj(register_module(
            "q_proj",
            torch::nn::Linear(options.features, options.features))),
        k_proj(register_module(
            "k_proj",
            torch::nn::Linear(options.features, options.key_heads * n))),
        v_proj(register_module(
            "v_proj",
            torch::nn::Linear(options.features, options.key_heads * n))),
        out_proj(register_module(
            "out_proj",
            torch::nn::Linear(options.features, options.features))),
        drop(register_module("drop", torch::nn::Dropout(options.dropout))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& padding) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const auto by_head = [&](const torch::Tensor& y, int64_t heads) {
      return y.view({batch, length, heads, n}).permute({0, 2, 1, 3});
    };
    const auto q = by_head(q_proj->forward(x), options.heads);
    auto k = by_head(k_proj->forward(x), options.key_heads);
    auto v = by_head(v_proj->forward(x), options.key_heads);
    const auto allowed =
        torch::ones({length, length}, torch::kBool).tril().unsqueeze(0) &
        padding.unsqueeze(1);
    torch::Tensor attended;
    if (options.fused_attention) {
      attended = at::scaled_dot_product_attention(
          q,
          k,
          v,
          allowed.unsqueeze(1),
          is_training() ? options.dropout : 0,
          false,
          std::nullopt,
          options.key_heads != options.heads);
    } else {
      if (options.key_heads != options.heads) {
        k = k.repeat_interleave(options.heads / options.key_heads, 1);
        v = v.repeat_interleave(options.heads / options.key_heads, 1);
      }
      auto scores = torch::matmul(q, k.transpose(-1, -2));
      scores /= std::sqrt(static_cast<double>(n));
      scores = scores.masked_fill(
          ~allowed.unsqueeze(1), -std::numeric_limits<double>::infinity());
      attended = torch::matmul(drop->forward(torch::softmax(scores, -1)), v);
    }
    return out_proj->forward(attended.transpose(1, 2).contiguous().view(
        {batch, length, options.heads * n}));
  }

  StrangeModelOptions options;
  int64_t n;
  torch::nn::Linear q_proj, k_proj, v_proj, out_proj;
  torch::nn::Dropout drop;
};
TORCH_MODULE(StrangeAttention);

struct StrangeLayerImpl : torch::nn::Module {
  explicit StrangeLayerImpl(const StrangeModelOptions& options)
      : norm1(register_module(
            "norm1",
            torch::nn::LayerNorm(
                torch::nn::LayerNormOptions({options.features})))),
        attention(register_module("attention", StrangeAttention(options))),
        up(register_module(
            "up",
            torch::nn::Linear(options.features, options.inner))),
        down(register_module(
            "down",
            torch::nn::Linear(options.inner, options.features))),
        drop(register_module("drop", torch::nn::Dropout(options.dropout))),
        scale(register_parameter("scale", torch::ones(options.features))) {}

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& padding) {
    x = x + drop->forward(attention->forward(norm1->forward(x), padding));
    // A norm of its own, like RMSNorm.
    const auto normed =
        x * torch::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-6) * scale;
    auto inner = torch::gelu(up->forward(normed));
    inner = inner / (1 + inner.abs().mean(-1, true)); // over all features
    auto y = drop->forward(down->forward(inner));
    y += x;
    return y;
  }

  torch::nn::LayerNorm norm1;
  StrangeAttention attention;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
  torch::Tensor scale;
};
TORCH_MODULE(StrangeLayer);

struct StrangeModelImpl : torch::nn::Module {
  explicit StrangeModelImpl(const StrangeModelOptions& options)
      : options(options),
        embed(register_module(
            "embed",
            torch::nn::Embedding(options.vocab, options.features))),
        positions(register_module(
            "positions",
            torch::nn::Embedding(options.length, options.features))),
        layers(register_module("layers", torch::nn::ModuleList())),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(
                torch::nn::LayerNormOptions({options.features})))),
        pooler(
            register_module("pooler", torch::nn::Linear(options.features, 3))),
        head(register_module(
            "head",
            torch::nn::Linear(
                torch::nn::LinearOptions(options.features, options.vocab)
                    .bias(false)))) {
    for (int i = 0; i < 2; ++i) {
      layers->push_back(StrangeLayer(options));
    }
    if (options.tied) {
      head->weight = embed->weight;
    }
  }

  /// The loss of the next token, and of a class of the whole.
  torch::Tensor forward(
      const torch::Tensor& tokens,
      const torch::Tensor& targets) {
    const auto padding = tokens != 20;
    auto x = embed->forward(tokens) +
             positions->forward(torch::arange(tokens.size(1)));
    for (const auto& layer : *layers) {
      x = layer->as<StrangeLayerImpl>()->forward(x, padding);
    }
    x = norm->forward(x);
    const auto logits = head->forward(x);
    const auto pooled =
        torch::tanh(pooler->forward(x.index({torch::indexing::Slice(), 0})));
    return torch::nn::functional::cross_entropy(
               logits.view({-1, options.vocab}), targets.view(-1)) +
           torch::nn::functional::cross_entropy(
               pooled, targets.select(1, 0) % 3) +
           1e-3 * logits.logsumexp(-1).square().mean();
  }

  StrangeModelOptions options;
  torch::nn::Embedding embed, positions;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm;
  torch::nn::Linear pooler, head;
};
TORCH_MODULE(StrangeModel);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPT-2 as anybody would write it with LibTorch, and, on request, with the
// opt-in helpers for its head.

#include "tessera/engine/helpers/linear_cross_entropy.h"
#include "tessera/engine/helpers/tied_embedding.h"

#include <torch/torch.h>

namespace tessera {

struct Gpt2Config {
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t vocabulary = 50257;
  int64_t positions = 1024;
};

struct Gpt2BlockImpl : torch::nn::Module {
  explicit Gpt2BlockImpl(const Gpt2Config& config) : heads(config.heads) {
    const int64_t width = config.width;
    const torch::nn::LayerNormOptions norm({width});
    ln_1 = register_module("ln_1", torch::nn::LayerNorm(norm));
    c_attn = register_module("c_attn", torch::nn::Linear(width, 3 * width));
    c_proj = register_module("c_proj", torch::nn::Linear(width, width));
    ln_2 = register_module("ln_2", torch::nn::LayerNorm(norm));
    mlp_fc = register_module("mlp_fc", torch::nn::Linear(width, 4 * width));
    mlp_proj = register_module("mlp_proj", torch::nn::Linear(4 * width, width));
  }

  at::Tensor attention(const at::Tensor& x) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const int64_t width = x.size(2);
    const auto split = [&](const at::Tensor& part) {
      return part.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const auto qkv = c_attn(x).split(width, 2);
    const at::Tensor mixed = at::scaled_dot_product_attention(
        split(qkv[0]),
        split(qkv[1]),
        split(qkv[2]),
        /*attn_mask=*/{},
        /*dropout_p=*/0.0,
        /*is_causal=*/true);
    return c_proj(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = input + attention(ln_1(input));
    return x + mlp_proj(at::gelu(mlp_fc(ln_2(x)), "tanh"));
  }

  int64_t heads;
  torch::nn::LayerNorm ln_1{nullptr};
  torch::nn::LayerNorm ln_2{nullptr};
  torch::nn::Linear c_attn{nullptr};
  torch::nn::Linear c_proj{nullptr};
  torch::nn::Linear mlp_fc{nullptr};
  torch::nn::Linear mlp_proj{nullptr};
};
TORCH_MODULE(Gpt2Block);

/// The head's weight is the embedding's.
struct Gpt2Impl : torch::nn::Module {
  explicit Gpt2Impl(const Gpt2Config& config) {
    wte = register_module(
        "wte", torch::nn::Embedding(config.vocabulary, config.width));
    wpe = register_module(
        "wpe", torch::nn::Embedding(config.positions, config.width));
    h = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < config.layers; ++i) {
      h->push_back(Gpt2Block(config));
    }
    ln_f = register_module(
        "ln_f",
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
    torch::NoGradGuard no_grad;
    constexpr double kDeviation = 0.02;
    for (auto& item : named_parameters()) {
      if (item.value().dim() == 2) {
        item.value().normal_(0, kDeviation);
      }
    }
  }

  /// From the embedded tokens to the head: [batch, length, width].
  at::Tensor hidden(const at::Tensor& embedded) {
    const auto index = embedded.options().dtype(at::kLong);
    at::Tensor x = embedded + wpe(at::arange(embedded.size(1), index));
    for (const auto& block : *h) {
      x = block->as<Gpt2Block>()->forward(x);
    }
    return ln_f(x);
  }

  /// Mean loss of predicting each token of `ids` ([batch, length], int64) from
  /// those before it.
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor logits = at::linear(hidden(wte(ids)), wte->weight);
    const int64_t last = ids.size(1) - 1;
    return at::cross_entropy_loss(
        logits.narrow(1, 0, last).flatten(0, 1),
        ids.narrow(1, 1, last).flatten());
  }

  /// forward() with the helpers.
  at::Tensor forward_with_helpers(const at::Tensor& ids) {
    const auto [embedded, head_weight] = tied_embedding(wte->weight, ids);
    const int64_t last = ids.size(1) - 1;
    return linear_cross_entropy(
        hidden(embedded).narrow(1, 0, last),
        head_weight,
        ids.narrow(1, 1, last));
  }

  torch::nn::Embedding wte{nullptr};
  torch::nn::Embedding wpe{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(Gpt2);

} // namespace tessera

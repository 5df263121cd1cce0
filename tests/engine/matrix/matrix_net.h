// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small language model of odd sizes, in the variants that tend to break an
// engine.

#include "tessera/runtime/kernels/mixed_norm.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera::tests {

struct MatrixOptions {
  std::string variant = "all trained";
  bool checkpointed = false;
  /// The reference: conversions between types are written out, as one has to
  /// without an engine. Nothing: the engine makes them.
  std::optional<at::ScalarType> written_out;
};

inline constexpr int64_t kVocabulary = 29;
inline constexpr int64_t kHidden = 10;
inline constexpr int64_t kInner = 23;

/// Norms have float32 parameters and statistics, whatever the rest is in. Of
/// 16-bit activations the reference calls the operator that the engine chooses:
/// LibTorch's kernels have other bits. mixed_norm_test compares it with
/// float64.
inline at::Tensor normed(
    torch::nn::LayerNorm& norm,
    const at::Tensor& x,
    const MatrixOptions& options) {
  return options.written_out && c10::isReducedFloatingType(x.scalar_type())
             ? runtime::mixed_layer_norm(
                   x, {kHidden}, norm->weight, norm->bias, norm->options.eps())
             : norm(x);
}

struct MatrixLayerImpl : torch::nn::Module {
  explicit MatrixLayerImpl(const MatrixOptions& net_options)
      : options(net_options),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))),
        up(register_module("up", torch::nn::Linear(kHidden, kInner))),
        down(register_module("down", torch::nn::Linear(kInner, kHidden))) {
    if (options.variant == "low-rank") {
      low = register_parameter("low", torch::randn({kHidden, 3}) * 0.1);
      high = register_parameter("high", torch::randn({3, kInner}) * 0.1);
      up->weight.requires_grad_(false);
      up->bias.requires_grad_(false);
      down->weight.requires_grad_(false);
    }
    if (options.variant == "unused") {
      register_module("spare", torch::nn::Linear(7, 5));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = normed(norm, x, options);
    at::Tensor inner = up(y);
    if (low.defined()) {
      inner = inner + torch::matmul(torch::matmul(y, low), high);
    }
    return x + down(torch::gelu(inner));
  }

  MatrixOptions options;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
  at::Tensor low;
  at::Tensor high;
};
TORCH_MODULE(MatrixLayer);

struct MatrixNetImpl : torch::nn::Module {
  explicit MatrixNetImpl(const MatrixOptions& net_options)
      : options(net_options),
        embedding(register_module(
            "embedding",
            torch::nn::Embedding(kVocabulary, kHidden))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))),
        head(register_module(
            "head",
            torch::nn::Linear(
                torch::nn::LinearOptions(kHidden, kVocabulary).bias(false)))) {
    CheckpointOptions block_options;
    block_options.use_checkpoint = options.checkpointed;
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          CheckpointBlock<MatrixLayer>(MatrixLayer(options), block_options)));
    }
    if (options.variant == "tied") {
      head->weight = embedding->weight;
    }
    if (options.variant == "frozen") {
      embedding->weight.requires_grad_(false);
      for (at::Tensor& parameter : layers[0]->parameters()) {
        parameter.requires_grad_(false);
      }
    }
  }

  /// @param tokens [batch, time]
  /// @return logits of the next token, [batch * time, kVocabulary] float32
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding(tokens);
    for (auto& layer : layers) {
      x = layer(x);
    }
    return head(normed(norm, x, options))
        .to(torch::kFloat)
        .reshape({-1, kVocabulary});
  }

  MatrixOptions options;
  torch::nn::Embedding embedding;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  std::vector<CheckpointBlock<MatrixLayer>> layers;
};
TORCH_MODULE(MatrixNet);

} // namespace tessera::tests

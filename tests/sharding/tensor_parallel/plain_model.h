// SPDX-License-Identifier: Apache-2.0
#pragma once
// A language model as somebody writes it who has never heard of tensor
// parallelism. Attention does not state the number of its heads in views.

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>

namespace tessera {

struct PlainModelOptions {
  int64_t vocab = 37;
  int64_t features = 24;
  int64_t heads = 6;
  int64_t inner = 50;
  bool tied = false;
  bool head_bias = false;
};

struct PlainAttentionImpl : torch::nn::Module {
  PlainAttentionImpl(int64_t features, int64_t heads)
      : head_features(features / heads),
        query(register_module("query", torch::nn::Linear(features, features))),
        key(register_module("key", torch::nn::Linear(features, features))),
        value(register_module("value", torch::nn::Linear(features, features))),
        output(
            register_module("output", torch::nn::Linear(features, features))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto by_head = [&](const torch::Tensor& y) {
      return y.view({x.size(0), x.size(1), -1, head_features}).transpose(1, 2);
    };
    const auto scores = torch::matmul(
                            by_head(query->forward(x)),
                            by_head(key->forward(x)).transpose(-1, -2)) /
                        std::sqrt(static_cast<double>(head_features));
    const auto attended =
        torch::matmul(torch::softmax(scores, -1), by_head(value->forward(x)));
    return output->forward(attended.transpose(1, 2).flatten(2));
  }

  int64_t head_features;
  torch::nn::Linear query, key, value, output;
};
TORCH_MODULE(PlainAttention);

struct PlainLayerImpl : torch::nn::Module {
  explicit PlainLayerImpl(const PlainModelOptions& options)
      : norm1(register_module(
            "norm1",
            torch::nn::LayerNorm(
                torch::nn::LayerNormOptions({options.features})))),
        norm2(register_module(
            "norm2",
            torch::nn::LayerNorm(
                torch::nn::LayerNormOptions({options.features})))),
        attention(register_module(
            "attention",
            PlainAttention(options.features, options.heads))),
        mlp(register_module(
            "mlp",
            torch::nn::Sequential(
                torch::nn::Linear(options.features, options.inner),
                torch::nn::GELU(),
                torch::nn::Linear(options.inner, options.features)))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto middle = x + attention->forward(norm1->forward(x));
    return middle + mlp->forward(norm2->forward(middle));
  }

  torch::nn::LayerNorm norm1, norm2;
  PlainAttention attention;
  torch::nn::Sequential mlp;
};
TORCH_MODULE(PlainLayer);

struct PlainModelImpl : torch::nn::Module {
  explicit PlainModelImpl(const PlainModelOptions& options)
      : embed(register_module(
            "embed",
            torch::nn::Embedding(
                torch::nn::EmbeddingOptions(options.vocab, options.features)
                    .padding_idx(20)))),
        layers(register_module("layers", torch::nn::ModuleList())),
        head(register_module(
            "head",
            torch::nn::Linear(
                torch::nn::LinearOptions(options.features, options.vocab)
                    .bias(options.head_bias)))) {
    for (int i = 0; i < 2; ++i) {
      layers->push_back(PlainLayer(options));
    }
    if (options.tied) {
      head->weight = embed->weight;
    }
  }

  /// The loss.
  torch::Tensor forward(
      const torch::Tensor& tokens,
      const torch::Tensor& targets) {
    auto x = embed->forward(tokens);
    for (const auto& layer : *layers) {
      x = layer->as<PlainLayerImpl>()->forward(x);
    }
    return torch::nn::functional::cross_entropy(
        head->forward(x).flatten(0, 1), targets.flatten());
  }

  torch::nn::Embedding embed;
  torch::nn::ModuleList layers;
  torch::nn::Linear head;
};
TORCH_MODULE(PlainModel);

} // namespace tessera

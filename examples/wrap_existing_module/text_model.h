// SPDX-License-Identifier: Apache-2.0
#pragma once
// A LibTorch model as anyone might have it: nothing in this file knows that it
// will be trained in pieces.

#include <torch/torch.h>

#include <string>
#include <vector>

struct TextModelOptions {
  int64_t vocabulary = 2048;
  int64_t width = 192;
  int64_t heads = 4;
  int64_t blocks = 4;
  int64_t context = 48;
};

/// Self-attention and a feed-forward part, each with a residual connection.
struct AttentionBlockImpl : torch::nn::Module {
  explicit AttentionBlockImpl(const TextModelOptions& options)
      : norm1(torch::nn::LayerNormOptions({options.width})),
        attention(
            torch::nn::MultiheadAttentionOptions(options.width, options.heads)),
        norm2(torch::nn::LayerNormOptions({options.width})),
        up(options.width, 4 * options.width),
        down(4 * options.width, options.width) {
    register_module("norm1", norm1);
    register_module("attention", attention);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }

  /// @param x [time, batch, width]
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    const auto h = norm1(x);
    x = x + std::get<0>(attention(
                h,
                h,
                h,
                /*key_padding_mask=*/torch::Tensor(),
                /*need_weights=*/false,
                mask));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::MultiheadAttention attention;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(AttentionBlock);

/// Predicts the next token: embedding, convolution, LSTM, attention, and a head
/// tied to the embedding.
struct TextModelImpl : torch::nn::Module {
  explicit TextModelImpl(const TextModelOptions& options)
      : embedding(options.vocabulary, options.width),
        convolution(torch::nn::Conv1dOptions(options.width, options.width, 3)
                        .padding(2)),
        lstm(torch::nn::LSTMOptions(options.width, options.width)),
        norm(torch::nn::LayerNormOptions({options.width})) {
    register_module("embedding", embedding);
    register_module("convolution", convolution);
    register_module("lstm", lstm);
    for (int64_t i = 0; i < options.blocks; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i), AttentionBlock(options)));
    }
    register_module("norm", norm);
    torch::NoGradGuard no_grad;
    embedding->weight.mul_(0.02);
  }

  /// @param tokens [batch, time] int64
  /// @return logits [batch, time, vocabulary]
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto time = tokens.size(1);
    auto x = embedding(tokens).transpose(1, 2); // [batch, width, time]
    x = torch::relu(convolution(x).narrow(2, 0, time)); // sees no later token
    x = std::get<0>(lstm(x.permute({2, 0, 1}))); // [time, batch, width]
    const auto mask =
        torch::ones({time, time}, torch::kBool).triu(1).to(x.device());
    for (auto& block : blocks) {
      x = block->forward(x, mask);
    }
    // A head tied to the embedding.
    return torch::linear(norm(x), embedding->weight).transpose(0, 1);
  }

  torch::nn::Embedding embedding;
  torch::nn::Conv1d convolution;
  torch::nn::LSTM lstm;
  std::vector<AttentionBlock> blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(TextModel);

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of BERT. Names of modules are those of Hugging Face, so that
// checkpoints map one to one. B rows of S tokens, hidden size H.

#include "tessera/zoo/bert_config.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Sum of word, position and token type embeddings, LayerNorm, dropout.
class BertEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& config);
  /// ids [B, S], types [B, S] or undefined (all 0) -> [B, S, H].
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& types);

 private:
  torch::nn::Embedding word_embeddings_{nullptr};
  torch::nn::Embedding position_embeddings_{nullptr};
  torch::nn::Embedding token_type_embeddings_{nullptr};
  torch::nn::LayerNorm layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(BertEmbeddings);

/// Multi-head attention, without its output projection.
class BertSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit BertSelfAttentionImpl(const BertConfig& config);
  /// hidden [B, S, H], mask bool [B, 1, 1, S] (true: attend to it) or undefined
  /// -> [B, S, H].
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& mask);

 private:
  torch::Tensor by_head(const torch::Tensor& projected) const;

  std::int64_t heads_;
  double dropout_probability_;
  torch::nn::Linear query_{nullptr};
  torch::nn::Linear key_{nullptr};
  torch::nn::Linear value_{nullptr};
};
TORCH_MODULE(BertSelfAttention);

/// Dense layer, dropout, residual sum, LayerNorm: it ends both halves of a
/// block.
class BertResidualImpl : public torch::nn::Module {
 public:
  BertResidualImpl(std::int64_t in_features, const BertConfig& config);
  /// hidden [B, S, in_features], residual [B, S, H] -> [B, S, H].
  torch::Tensor forward(
      const torch::Tensor& hidden,
      const torch::Tensor& residual);

 private:
  torch::nn::Linear dense_{nullptr};
  torch::nn::LayerNorm layer_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(BertResidual);

/// Self-attention and the residual after it.
class BertAttentionImpl : public torch::nn::Module {
 public:
  explicit BertAttentionImpl(const BertConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& mask);

 private:
  BertSelfAttention self_{nullptr};
  BertResidual output_{nullptr};
};
TORCH_MODULE(BertAttention);

/// The widening dense layer and the activation.
class BertIntermediateImpl : public torch::nn::Module {
 public:
  explicit BertIntermediateImpl(const BertConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden);

 private:
  torch::Tensor (*activation_)(const torch::Tensor&);
  torch::nn::Linear dense_{nullptr};
};
TORCH_MODULE(BertIntermediate);

/// One transformer block: attention, then the feed-forward half.
class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& mask);

 private:
  BertAttention attention_{nullptr};
  BertIntermediate intermediate_{nullptr};
  BertResidual output_{nullptr};
};
TORCH_MODULE(BertLayer);

/// The blocks, in a ModuleList named `layer`.
class BertEncoderImpl : public torch::nn::Module {
 public:
  explicit BertEncoderImpl(const BertConfig& config);
  /// @param hidden_states receives the input and each block's output, unless
  /// null.
  torch::Tensor forward(
      torch::Tensor hidden,
      const torch::Tensor& mask,
      std::vector<torch::Tensor>* hidden_states);

  /// The first `count` layers keep only their input for backward and are
  /// computed again there (tessera::checkpoint()); 0, the default, for none.
  /// May be changed at any time.
  void set_checkpointed_layers(std::int64_t count) {
    checkpointed_layers_ = count;
  }

 private:
  torch::nn::ModuleList layers_{nullptr};
  std::int64_t checkpointed_layers_ = 0;
};
TORCH_MODULE(BertEncoder);

/// Dense layer and tanh over the first token: [B, S, H] -> [B, H].
class BertPoolerImpl : public torch::nn::Module {
 public:
  explicit BertPoolerImpl(const BertConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden);

 private:
  torch::nn::Linear dense_{nullptr};
};
TORCH_MODULE(BertPooler);

/// Fills every Linear and Embedding under `module` with N(0, deviation), biases
/// and the padding row with 0, LayerNorms with 1 and 0.
void init_bert_weights(torch::nn::Module& module, double deviation);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// BERT (arXiv:1810.04805): plain LibTorch modules whose parameters are named as
// in Hugging Face checkpoints. B rows of S tokens, hidden size H.

#include "tessera/zoo/bert_config.h"
#include "tessera/zoo/bert_layers.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <vector>

namespace tessera {

/// One batch. Tensors share the model's device.
struct BertInput {
  /// [B, S] int64 or int32, below vocab_size; S at most
  /// max_position_embeddings.
  torch::Tensor input_ids;
  /// [B, S], 0 where a token is padding; undefined when there is no padding,
  /// which is faster. A row that is all padding attends to all its tokens.
  torch::Tensor attention_mask;
  /// [B, S] as input_ids, below type_vocab_size; undefined for all 0.
  torch::Tensor token_type_ids;
};

struct BertOutput {
  /// [B, S, H]. Rows of padding hold numbers that mean nothing.
  torch::Tensor last_hidden;
  /// [B, H]: a dense layer and tanh over the first token.
  torch::Tensor pooled;
  /// The embeddings and each layer's output, when asked for.
  std::vector<torch::Tensor> hidden_states;
};

/// Embeddings, encoder, pooler. Fresh weights are N(0, initializer_range),
/// biases 0, LayerNorms 1 and 0.
class BertModelImpl : public torch::nn::Module {
 public:
  /// @throws Error when the configuration makes no BERT.
  explicit BertModelImpl(const BertConfig& config);

  /// @throws Error on a wrong rank, dtype or length and, for tensors on the
  /// CPU, on ids out of range. Does not synchronise.
  BertOutput forward(const BertInput& input, bool with_hidden_states = false);

  /// See BertEncoder.
  void set_checkpointed_layers(std::int64_t count) {
    encoder_->set_checkpointed_layers(count);
  }

  const BertConfig& config() const {
    return config_;
  }

 private:
  BertConfig config_;
  BertEmbeddings embeddings_{nullptr};
  BertEncoder encoder_{nullptr};
  BertPooler pooler_{nullptr};
};
TORCH_MODULE(BertModel);

/// BERT, dropout, and a linear layer over the pooled output.
class BertForSequenceClassificationImpl : public torch::nn::Module {
 public:
  /// One output per label of the configuration.
  /// @throws Error when the configuration makes no BERT.
  explicit BertForSequenceClassificationImpl(const BertConfig& config);

  /// Logits [B, num_labels].
  /// @throws as BertModel.
  torch::Tensor forward(const BertInput& input);

  /// See BertEncoder.
  void set_checkpointed_layers(std::int64_t count) {
    bert_->set_checkpointed_layers(count);
  }

  const BertConfig& config() const {
    return bert_->config();
  }

 private:
  BertModel bert_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(BertForSequenceClassification);

} // namespace tessera

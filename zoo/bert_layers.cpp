// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert_layers.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/checkpoint.h"

#include <torch/nn/init.h>
#include <torch/torch.h>

namespace tessera {
namespace {

torch::nn::LayerNorm layer_norm(const BertConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden_size})
                                  .eps(config.layer_norm_eps));
}

} // namespace

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertConfig& config) {
  using torch::nn::Embedding;
  using torch::nn::EmbeddingOptions;
  word_embeddings_ = register_module(
      "word_embeddings",
      Embedding(EmbeddingOptions(config.vocab_size, config.hidden_size)
                    .padding_idx(config.pad_token_id)));
  position_embeddings_ = register_module(
      "position_embeddings",
      Embedding(config.max_position_embeddings, config.hidden_size));
  token_type_embeddings_ = register_module(
      "token_type_embeddings",
      Embedding(config.type_vocab_size, config.hidden_size));
  layer_norm_ = register_module("LayerNorm", layer_norm(config));
  dropout_ = register_module(
      "dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

torch::Tensor BertEmbeddingsImpl::forward(
    const torch::Tensor& ids,
    const torch::Tensor& types) {
  const torch::Tensor positions = torch::arange(ids.size(1), ids.options());
  torch::Tensor sum = word_embeddings_->forward(ids) +
                      token_type_embeddings_->forward(
                          types.defined() ? types : torch::zeros_like(ids));
  sum = sum + position_embeddings_->forward(positions);
  return dropout_->forward(layer_norm_->forward(sum));
}

BertSelfAttentionImpl::BertSelfAttentionImpl(const BertConfig& config)
    : heads_(config.num_attention_heads),
      dropout_probability_(config.attention_probs_dropout_prob) {
  const std::int64_t size = config.hidden_size;
  query_ = register_module("query", torch::nn::Linear(size, size));
  key_ = register_module("key", torch::nn::Linear(size, size));
  value_ = register_module("value", torch::nn::Linear(size, size));
}

// [B, S, H] -> [B, heads, S, H / heads]
torch::Tensor BertSelfAttentionImpl::by_head(
    const torch::Tensor& projected) const {
  return projected.unflatten(2, {heads_, -1}).transpose(1, 2);
}

torch::Tensor BertSelfAttentionImpl::forward(
    const torch::Tensor& hidden,
    const torch::Tensor& mask) {
  const torch::Tensor context = at::scaled_dot_product_attention(
      by_head(query_->forward(hidden)),
      by_head(key_->forward(hidden)),
      by_head(value_->forward(hidden)),
      mask.defined() ? std::optional<torch::Tensor>(mask) : std::nullopt,
      is_training() ? dropout_probability_ : 0.0);
  return context.transpose(1, 2).flatten(2);
}

BertResidualImpl::BertResidualImpl(
    std::int64_t in_features,
    const BertConfig& config) {
  dense_ = register_module(
      "dense", torch::nn::Linear(in_features, config.hidden_size));
  layer_norm_ = register_module("LayerNorm", layer_norm(config));
  dropout_ = register_module(
      "dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

torch::Tensor BertResidualImpl::forward(
    const torch::Tensor& hidden,
    const torch::Tensor& residual) {
  return layer_norm_->forward(
      dropout_->forward(dense_->forward(hidden)) + residual);
}

BertAttentionImpl::BertAttentionImpl(const BertConfig& config) {
  self_ = register_module("self", BertSelfAttention(config));
  output_ = register_module("output", BertResidual(config.hidden_size, config));
}

torch::Tensor BertAttentionImpl::forward(
    const torch::Tensor& hidden,
    const torch::Tensor& mask) {
  return output_->forward(self_->forward(hidden, mask), hidden);
}

BertIntermediateImpl::BertIntermediateImpl(const BertConfig& config) {
  if (config.hidden_act == "gelu") {
    activation_ = [](const torch::Tensor& x) { return at::gelu(x); };
  } else if (config.hidden_act == "gelu_new") {
    activation_ = [](const torch::Tensor& x) { return at::gelu(x, "tanh"); };
  } else {
    TESSERA_CHECK(
        config.hidden_act == "relu",
        "hidden_act is '",
        config.hidden_act,
        "'; implemented are gelu, gelu_new and relu");
    activation_ = [](const torch::Tensor& x) { return at::relu(x); };
  }
  dense_ = register_module(
      "dense", torch::nn::Linear(config.hidden_size, config.intermediate_size));
}

torch::Tensor BertIntermediateImpl::forward(const torch::Tensor& hidden) {
  return activation_(dense_->forward(hidden));
}

BertLayerImpl::BertLayerImpl(const BertConfig& config) {
  attention_ = register_module("attention", BertAttention(config));
  intermediate_ = register_module("intermediate", BertIntermediate(config));
  output_ =
      register_module("output", BertResidual(config.intermediate_size, config));
}

torch::Tensor BertLayerImpl::forward(
    const torch::Tensor& hidden,
    const torch::Tensor& mask) {
  const torch::Tensor attended = attention_->forward(hidden, mask);
  return output_->forward(intermediate_->forward(attended), attended);
}

BertEncoderImpl::BertEncoderImpl(const BertConfig& config) {
  layers_ = register_module("layer", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_->push_back(BertLayer(config));
  }
}

// The layer is kept, and not what it computes inside.
static torch::Tensor recomputed(
    const std::shared_ptr<BertLayerImpl>& layer,
    const torch::Tensor& hidden,
    const torch::Tensor& mask) {
  const auto parameters = layer->parameters();
  const bool trains = std::any_of(
      parameters.begin(), parameters.end(), [](const torch::Tensor& parameter) {
        return parameter.requires_grad();
      });
  return checkpoint(
      trains,
      [layer](const torch::Tensor& input, const torch::Tensor& attends) {
        return layer->forward(input, attends);
      },
      hidden,
      mask);
}

torch::Tensor BertEncoderImpl::forward(
    torch::Tensor hidden,
    const torch::Tensor& mask,
    std::vector<torch::Tensor>* hidden_states) {
  if (hidden_states != nullptr) {
    hidden_states->push_back(hidden);
  }
  std::int64_t number = 0;
  for (const auto& module : *layers_) {
    const auto layer = std::dynamic_pointer_cast<BertLayerImpl>(module);
    hidden = number++ < checkpointed_layers_ && at::GradMode::is_enabled()
                 ? recomputed(layer, hidden, mask)
                 : layer->forward(hidden, mask);
    if (hidden_states != nullptr) {
      hidden_states->push_back(hidden);
    }
  }
  return hidden;
}

BertPoolerImpl::BertPoolerImpl(const BertConfig& config) {
  dense_ = register_module(
      "dense", torch::nn::Linear(config.hidden_size, config.hidden_size));
}

torch::Tensor BertPoolerImpl::forward(const torch::Tensor& hidden) {
  return at::tanh(dense_->forward(hidden.select(1, 0)));
}

void init_bert_weights(torch::nn::Module& module, double deviation) {
  const torch::NoGradGuard no_grad;
  module.apply([deviation](torch::nn::Module& part) {
    if (auto* linear = part.as<torch::nn::LinearImpl>()) {
      linear->weight.normal_(0, deviation);
      linear->bias.zero_();
    } else if (auto* embedding = part.as<torch::nn::EmbeddingImpl>()) {
      embedding->weight.normal_(0, deviation);
      if (const auto padding = embedding->options.padding_idx()) {
        embedding->weight[*padding].zero_();
      }
    } else if (auto* norm = part.as<torch::nn::LayerNormImpl>()) {
      norm->reset_parameters(); // 1 and 0
    }
  });
}

} // namespace tessera

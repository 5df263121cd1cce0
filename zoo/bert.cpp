// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert.h"

#include "tessera/runtime/core/error.h"

#include <torch/torch.h>

namespace tessera {
namespace {

const BertConfig& validated(const BertConfig& config) {
  config.validate();
  return config;
}

void check_ids(
    const char* name,
    const torch::Tensor& ids,
    std::int64_t bound,
    const char* remedy) {
  TESSERA_CHECK(
      ids.dim() == 2 && (ids.scalar_type() == torch::kInt64 ||
                         ids.scalar_type() == torch::kInt32),
      "BertModel: ",
      name,
      " is ",
      ids.toString(),
      ids.sizes(),
      "; it must be [batch, sequence] of int64 or int32");
  // Elsewhere reading them would wait for the device.
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto [least, greatest] = at::aminmax(ids);
    const auto low = least.item<std::int64_t>();
    const auto high = greatest.item<std::int64_t>();
    TESSERA_CHECK(
        low >= 0 && high < bound,
        "BertModel: ",
        name,
        " holds ",
        (low < 0 ? low : high),
        ", outside 0 .. ",
        bound - 1,
        "; ",
        remedy);
  }
}

void check_input(const BertInput& input, const BertConfig& config) {
  TESSERA_CHECK(input.input_ids.defined(), "BertModel: input_ids is undefined");
  check_ids(
      "input_ids",
      input.input_ids,
      config.vocab_size,
      "was the text encoded with this model's tokenizer?");
  const auto sizes = input.input_ids.sizes();
  TESSERA_CHECK(
      sizes[1] >= 1 && sizes[1] <= config.max_position_embeddings,
      "BertModel: sequences of ",
      sizes[1],
      " tokens; the model takes 1 to ",
      config.max_position_embeddings,
      "; encode with max_length = ",
      config.max_position_embeddings);
  if (input.token_type_ids.defined()) {
    check_ids(
        "token_type_ids",
        input.token_type_ids,
        config.type_vocab_size,
        "leave them undefined for single texts");
  }
  for (const torch::Tensor& other :
       {input.token_type_ids, input.attention_mask}) {
    TESSERA_CHECK(
        !other.defined() || other.sizes() == sizes,
        "BertModel: input_ids is ",
        sizes,
        ", but the attention mask or the token types are ",
        other.sizes(),
        "; they must have one shape");
  }
}

// [B, S] to bool [B, 1, 1, S]. A softmax over nothing is NaN, and kernels
// differ in how they treat it: where all is padding, everything attends, and
// the row means nothing anyway.
torch::Tensor attention_pattern(const torch::Tensor& mask) {
  if (!mask.defined()) {
    return {};
  }
  const torch::Tensor attends = mask.ne(0);
  const torch::Tensor safe = attends | ~attends.any(1, /*keepdim=*/true);
  return safe.unsqueeze(1).unsqueeze(1);
}

} // namespace

BertModelImpl::BertModelImpl(const BertConfig& config)
    : config_(validated(config)) {
  embeddings_ = register_module("embeddings", BertEmbeddings(config));
  encoder_ = register_module("encoder", BertEncoder(config));
  pooler_ = register_module("pooler", BertPooler(config));
  init_bert_weights(*this, config.initializer_range);
}

BertOutput BertModelImpl::forward(
    const BertInput& input,
    bool with_hidden_states) {
  check_input(input, config_);
  BertOutput output;
  output.last_hidden = encoder_->forward(
      embeddings_->forward(input.input_ids, input.token_type_ids),
      attention_pattern(input.attention_mask),
      with_hidden_states ? &output.hidden_states : nullptr);
  output.pooled = pooler_->forward(output.last_hidden);
  return output;
}

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(
    const BertConfig& config) {
  bert_ = register_module("bert", BertModel(config));
  dropout_ = register_module(
      "dropout",
      torch::nn::Dropout(
          config.classifier_dropout.value_or(config.hidden_dropout_prob)));
  classifier_ = register_module(
      "classifier", torch::nn::Linear(config.hidden_size, config.num_labels()));
  init_bert_weights(*classifier_, config.initializer_range);
}

torch::Tensor BertForSequenceClassificationImpl::forward(
    const BertInput& input) {
  return classifier_->forward(dropout_->forward(bert_->forward(input).pooled));
}

} // namespace tessera

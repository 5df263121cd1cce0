// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainedModel` is what train_gpt2 trains: GPT-2 as anybody would write it
// with LibTorch, or the zoo's Llama.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace tessera {

struct ModelSize {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0; ///< Llama only
  int64_t intermediate = 0; ///< of Llama's feed-forward layers
  int64_t vocabulary = 0;
  int64_t sequence = 0; ///< the longest that is trained on
};

struct TrainedModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Mean loss of predicting each token of `ids` ([batch, length], int64) from
  /// those before it.
  std::function<at::Tensor(const at::Tensor& ids)> loss;
  int64_t parameters = 0;
  /// Those of tables that are only looked up: no operations.
  int64_t looked_up = 0;

  /// Operations for a token of forward and backward: 6 for each parameter that
  /// is multiplied, the head's included, and attention in full, causal or not.
  double operations_per_token(const ModelSize& size) const;
};

/// In words, for the output.
inline constexpr const char* kMfuFormula =
    "tokens_per_s x (6 x (parameters - looked_up) + 12 x layers x width x "
    "sequence) / peak";

/// @param is_lazy whether parameters get no memory yet.
/// @param helpers whether the loss is that of linear_cross_entropy(), with the
///   table from tied_embedding().
TrainedModel make_gpt2(const ModelSize& size, bool is_lazy, bool helpers);

/// LlamaForCausalLM of Llama 3, whose head is not tied.
/// @param helpers whether the logits of all tokens are never there at a time.
TrainedModel make_llama(const ModelSize& size, bool is_lazy, bool helpers);

} // namespace tessera

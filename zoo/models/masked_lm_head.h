// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MaskedLmHead` is the head of masked language models.

#include "tessera/zoo/layers/activation.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/layers/norm.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>

namespace tessera::zoo {

struct MaskedLmHeadOptions {
  int64_t features = 0; ///< of the hidden states
  int64_t embedded = 0; ///< of the norm and the vocabulary matrix
  int64_t vocab = 0;
  std::string activation = "gelu";
  NormOptions norm;
  double deviation = 0.02; ///< standard deviation of initial weights
  bool tied = true; ///< uses the embedding's weight
};

/// norm(act(dense x)), then a product with a vocabulary matrix, the embedding's
/// or its own, plus a bias per token. Parameters `dense`, `norm`, and `bias`
/// [vocab], whole on every rank. An untied head also has `decoder`, divided by
/// tokens, with a bias; transformers' files then contain an unused `bias`.
class MaskedLmHeadImpl : public torch::nn::Module {
 public:
  MaskedLmHeadImpl(
      const LayerContext& context,
      const MaskedLmHeadOptions& options);

  /// The features that are multiplied with the vocabulary matrix: hidden [B, S,
  /// features] between layers -> [B, S, embedded].
  at::Tensor forward(const at::Tensor& hidden);

  /// This rank's rows of an untied head's weight.
  const at::Tensor& local_weight() const {
    return decoder_.weight();
  }

  /// This rank's part of the bias, as VocabHead takes it.
  at::Tensor local_bias() const;

 private:
  LayerContext context_;
  Activation activation_;
  bool tied_;
  Linear dense_, decoder_;
  Norm norm_{nullptr};
  at::Tensor bias_;
};
TORCH_MODULE(MaskedLmHead);

} // namespace tessera::zoo

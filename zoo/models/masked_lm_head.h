// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of masked language models.

#include "tessera/zoo/layers/activation.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/layers/norm.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>

namespace tessera::zoo {

struct MaskedLmHeadOptions {
  int64_t features = 0;
  int64_t vocab = 0;
  std::string activation = "gelu";
  NormOptions norm;
  double deviation = 0.02; ///< of fresh weights
  bool tied = true; ///< it is used with the embedding's weight
};

/// norm(act(dense x)), then a product with a row for each token, the
/// embedding's or the head's own, plus a bias for each. Parameters `dense`,
/// `norm`, and `bias` [vocab], whole on every rank. One that is not tied also
/// has `decoder`, divided by tokens, with a bias; transformers' files then keep
/// a `bias` that nothing uses.
class MaskedLmHeadImpl : public torch::nn::Module {
 public:
  MaskedLmHeadImpl(
      const LayerContext& context,
      const MaskedLmHeadOptions& options);

  /// What is multiplied with the embedding: hidden [B, S, features] between
  /// layers -> the same.
  at::Tensor forward(const at::Tensor& hidden);

  /// This rank's rows of one that is not tied.
  const at::Tensor& own_weight() const {
    return decoder_.weight();
  }

  /// This rank's part of the bias, as VocabHead takes it.
  at::Tensor own_bias() const;

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

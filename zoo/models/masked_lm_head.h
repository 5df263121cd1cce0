// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of masked language models, over the embedding's weight.

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
};

/// norm(act(dense x)), then a product with the embedding's rows, plus a bias
/// for each token. Parameters `dense`, `norm`, and `bias` [vocab], whole on
/// every rank.
class MaskedLmHeadImpl : public torch::nn::Module {
 public:
  MaskedLmHeadImpl(
      const LayerContext& context,
      const MaskedLmHeadOptions& options);

  /// What is multiplied with the embedding: hidden [B, S, features] between
  /// layers -> the same.
  at::Tensor forward(const at::Tensor& hidden);

  /// This rank's part of the bias, as VocabHead takes it.
  at::Tensor own_bias() const;

 private:
  LayerContext context_;
  Activation activation_;
  Linear dense_;
  Norm norm_{nullptr};
  at::Tensor bias_;
};
TORCH_MODULE(MaskedLmHead);

} // namespace tessera::zoo

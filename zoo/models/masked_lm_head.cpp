// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/masked_lm_head.h"

#include <torch/types.h>

namespace tessera::zoo {

MaskedLmHeadImpl::MaskedLmHeadImpl(
    const LayerContext& context,
    const MaskedLmHeadOptions& options)
    : context_(context),
      activation_(zoo::activation(options.activation)),
      tied_(options.tied) {
  dense_ = Linear::undivided(
      *this,
      "dense",
      context_,
      {options.features, options.embedded, true, 1, options.deviation});
  norm_ = register_module("norm", Norm(options.norm));
  bias_ = register_parameter("bias", torch::zeros({options.vocab}));
  if (!tied_) {
    decoder_ = Linear::column(
        *this,
        "decoder",
        context_,
        {options.embedded, options.vocab, true, 1, options.deviation});
  }
}

at::Tensor MaskedLmHeadImpl::forward(const at::Tensor& hidden) {
  return norm_->forward(activation_(dense_.forward(hidden)));
}

at::Tensor MaskedLmHeadImpl::local_bias() const {
  return tied_ ? bias_ : decoder_.bias();
}

} // namespace tessera::zoo

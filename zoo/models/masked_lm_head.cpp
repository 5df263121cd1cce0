// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/masked_lm_head.h"

#include "tessera/sharding/tensors/dim_split.h"

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
      {options.features, options.features, true, 1, options.deviation});
  norm_ = register_module("norm", Norm(context_, options.norm));
  bias_ = register_parameter("bias", torch::zeros({options.vocab}));
  if (!tied_) {
    decoder_ = Linear::column(
        *this,
        "decoder",
        context_,
        {options.features, options.vocab, true, 1, options.deviation});
  }
}

at::Tensor MaskedLmHeadImpl::forward(const at::Tensor& hidden) {
  return norm_->forward(activation_(dense_.forward(hidden)));
}

at::Tensor MaskedLmHeadImpl::own_bias() const {
  if (!tied_) {
    return decoder_.bias();
  }
  const sharding::DimSplit split(bias_.size(0), context_.ranks());
  // Its gradient covers this rank's tokens only, so it is summed over the
  // ranks.
  return context_.shared(bias_).narrow(
      0, split.begin(context_.rank()), split.length(context_.rank()));
}

} // namespace tessera::zoo

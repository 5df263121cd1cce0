// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/feed_forward.h"

namespace tessera::zoo {

FeedForwardImpl::FeedForwardImpl(
    const LayerContext& context,
    const FeedForwardOptions& options)
    : context_(context),
      options_(options),
      activation_(zoo::activation(options.activation)) {
  const LinearOptions widening{
      options.features, options.inner, options.bias, 1, options.deviation};
  if (options.gated) {
    gate_ = Linear::column(*this, "gate", context_, widening);
  }
  up_ = Linear::column(*this, "up", context_, widening);
  down_ = Linear::row(
      *this,
      "down",
      context_,
      {options.inner,
       options.features,
       options.bias,
       1,
       options.output_deviation == 0 ? options.deviation
                                     : options.output_deviation});
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  std::vector<Linear*> columns{&up_};
  if (options_.gated) {
    columns.push_back(&gate_);
  }
  const auto widened = Linear::forward_columns(x, columns);
  const at::Tensor inner = options_.gated ? activation_(widened[1]) * widened[0]
                                          : activation_(widened[0]);
  return down_.forward(
      context_.dropout(inner, options_.dropout, is_training()));
}

} // namespace tessera::zoo

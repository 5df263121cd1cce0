// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/feed_forward.h"

#include "tessera/zoo/layers/operators.h"

namespace tessera::zoo {

FeedForwardImpl::FeedForwardImpl(
    const LayerContext& context,
    const FeedForwardOptions& options)
    : context_(context),
      options_(options),
      activation_(zoo::activation(options.activation)) {
  const LinearOptions widening{
      .in = options.features,
      .out = options.inner,
      .bias = options.bias,
      .deviation = options.deviation,
      .length_scale = options.length_scale};
  if (options.gated) {
    gate_ = Linear::column(*this, "gate", context_, widening);
  }
  up_ = Linear::column(*this, "up", context_, widening);
  down_ = Linear::row(
      *this,
      "down",
      context_,
      {.in = options.inner,
       .out = options.features,
       .bias = options.bias,
       .deviation = options.output_deviation == 0 ? options.deviation
                                                  : options.output_deviation,
       .length_scale = options.length_scale});
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  std::vector<Linear*> columns{&up_};
  if (options_.gated) {
    columns.push_back(&gate_);
  }
  const auto widened = Linear::forward_columns(x, columns);
  const at::Tensor inner =
      options_.gated ? operators().gated(activation_, widened[1], widened[0])
                     : activation_(widened[0]);
  return down_.forward(
      context_.dropout(inner, options_.dropout, is_training()));
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/norm.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/types.h>

namespace tessera::zoo {

NormImpl::NormImpl(const LayerContext& context, const NormOptions& options)
    : context_(context), options_(options) {
  TESSERA_CHECK(
      options.features >= 1,
      "Norm: features is {}; it must be at least 1",
      options.features);
  if (options.weight) {
    weight_ = register_parameter("weight", torch::ones({options.features}));
    if (options.bias && options.kind == NormKind::kLayerNorm) {
      bias_ = register_parameter("bias", torch::zeros({options.features}));
    }
  }
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  const auto use = [&](const at::Tensor& parameter) {
    return options_.inside_layer ? context_.shared(parameter)
                                 : context_.replicated(parameter);
  };
  const at::Tensor weight = use(weight_);
  if (options_.kind == NormKind::kRmsNorm) {
    return at::rms_norm(
        x,
        {options_.features},
        weight.defined() ? std::optional<at::Tensor>(weight) : std::nullopt,
        options_.eps);
  }
  return at::layer_norm(
      x, {options_.features}, weight, use(bias_), options_.eps);
}

} // namespace tessera::zoo

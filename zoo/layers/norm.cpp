// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/norm.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/types.h>

namespace tessera::zoo {

NormImpl::NormImpl(const NormOptions& options) : options_(options) {
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
  if (options_.kind == NormKind::kRmsNorm) {
    return at::rms_norm(
        x,
        {options_.features},
        weight_.defined() ? std::optional<at::Tensor>(weight_) : std::nullopt,
        options_.eps);
  }
  return at::layer_norm(x, {options_.features}, weight_, bias_, options_.eps);
}

} // namespace tessera::zoo

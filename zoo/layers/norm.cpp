// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/norm.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/operators.h"

#include <torch/types.h>

namespace tessera::zoo {

NormImpl::NormImpl(const NormOptions& options) : options_(options) {
  TESSERA_CHECK(
      options.features >= 1,
      "Norm: features is {}; it must be at least 1",
      options.features);
  if (options.weight) {
    weight_ = register_parameter(
        "weight", torch::full({options.features}, 1 - options.weight_offset));
    if (options.bias && options.kind == NormKind::kLayerNorm) {
      bias_ = register_parameter("bias", torch::zeros({options.features}));
    }
  }
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  return add(LayerContext(), {.x = x}).normed;
}

ResidualNorm NormImpl::add(
    const LayerContext& context,
    const Residual& residual) {
  return operators().residual_norm(
      context, residual, {options_, weight_, bias_});
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/norm.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

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
    weight_ = register_parameter(
        "weight", torch::full({options.features}, 1 - options.weight_offset));
    if (options.bias && options.kind == NormKind::kLayerNorm) {
      bias_ = register_parameter("bias", torch::zeros({options.features}));
    }
  }
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  const bool is_offset = weight_.defined() && options_.weight_offset != 0;
  if (options_.kind == NormKind::kLayerNorm) {
    return at::layer_norm(
        x,
        {options_.features},
        is_offset ? weight_ + options_.weight_offset : weight_,
        bias_,
        options_.eps);
  }
  const bool is_divided =
      is_dtensor(x) && local_tensor(x).size(-1) != options_.features;
  if (!is_divided && !is_offset) {
    return at::rms_norm(
        x,
        {options_.features},
        weight_.defined() ? std::optional<at::Tensor>(weight_) : std::nullopt,
        options_.eps);
  }
  // The kernel would need all features; and 1 + w is not exact in 16 bits.
  const auto type = at::promote_types(x.scalar_type(), at::kFloat);
  const at::Tensor wide = x.to(type);
  at::Tensor normed =
      wide * at::rsqrt(wide.square().mean(-1, true) + options_.eps);
  if (weight_.defined()) {
    normed = normed * (weight_.to(type) + options_.weight_offset);
  }
  return normed.to(x.scalar_type());
}

} // namespace tessera::zoo

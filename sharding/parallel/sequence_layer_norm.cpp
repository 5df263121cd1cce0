// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/sequence_layer_norm.h"

#include <ATen/ops/layer_norm.h>

namespace tessera {

SequenceLayerNormImpl::SequenceLayerNormImpl(
    const TensorParallel& how,
    const SequenceLayerNormOptions& options)
    : ParallelModule(how), options_(options) {
  weight = register_whole(
      "weight", {options.features}, ones_init(), options.parameters);
  if (options.bias) {
    bias = register_whole(
        "bias", {options.features}, zeros_init(), options.parameters);
  }
}

at::Tensor SequenceLayerNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(
      x,
      {options_.features},
      whole_parameter(weight, how()),
      whole_parameter(bias, how()),
      options_.eps);
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer normalisation between parallel layers, for models of tests.

#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/ops/layer_norm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera {

struct SequenceLayerNormOptions {
  int64_t features = 0;
  double eps = 1e-5;
  bool bias = true;
  DistributedParameterOptions parameters;
};

/// torch::nn::LayerNorm over the last dimension of activations between layers,
/// which under sequence parallelism are parts of sequences. Weight and bias are
/// whole on every rank; their gradients count the tokens of all ranks.
class SequenceLayerNormImpl : public ParallelModule {
 public:
  SequenceLayerNormImpl(
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

  at::Tensor forward(const at::Tensor& x) {
    return at::layer_norm(
        x,
        {options_.features},
        whole_parameter(weight, how()),
        whole_parameter(bias, how()),
        options_.eps);
  }

  at::Tensor weight;
  at::Tensor bias; ///< undefined without one

 private:
  SequenceLayerNormOptions options_;
};
TORCH_MODULE(SequenceLayerNorm);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A linear layer of a model, plain or tensor-parallel.

#include "tessera/sharding/parallel/parallel_linear.h"
#include "tessera/zoo/layers/layer_context.h"

#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

namespace tessera::zoo {

struct LinearOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = true;
  /// Features that stay on one rank, such as those of a head.
  int64_t unit = 1;
  /// Fresh weights are N(0, deviation), biases 0.
  double deviation = 0.02;
};

/// y = x W^T + b. A handle: the layer is registered in the module that owns it,
/// with parameters `weight` [out, in] and `bias` [out]. With a context of a
/// group it is a Linear1D, divided as the function says that makes it.
class Linear {
 public:
  Linear() = default;

  /// Output features are divided: activations between layers to features.
  static Linear column(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Input features are divided: features to activations between layers.
  static Linear row(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Not divided: between layers on both sides.
  static Linear undivided(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// x [..., in] as the division says. Collective with a group.
  at::Tensor forward(const at::Tensor& x);

  /// Several column layers of one activation between layers: what travels does
  /// so once ([Note: products while activations travel]).
  static std::vector<at::Tensor> forward_columns(
      const LayerContext& context,
      const at::Tensor& x,
      const std::vector<Linear*>& columns);

  /// A column layer behind LayerContext::enter().
  at::Tensor forward_entered(const at::Tensor& entered);

  const at::Tensor& weight() const;
  const at::Tensor& bias() const; ///< undefined without one

 private:
  static Linear make(
      torch::nn::Module& owner,
      const std::string& name,
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& options);

  torch::nn::Linear plain_{nullptr};
  Linear1D parallel_{nullptr};
};

} // namespace tessera::zoo

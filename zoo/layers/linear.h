// SPDX-License-Identifier: Apache-2.0
#pragma once
// A linear layer of a model, plain or tensor-parallel.

#include "tessera/sharding/parallel/parallel_linear.h"
#include "tessera/zoo/layers/layer_context.h"

#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

/// A summand of a linear layer's result, such as LoRA's product.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;

  /// @param x [..., in], what the layer multiplies by its weight: behind
  ///     LayerContext::enter() in a column layer, this rank's features in a row
  ///     layer.
  /// @return [..., out] as the layer gives it. Collective with a group.
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// What a Linear registers in its owner, beside a torch::nn::Linear or a
/// Linear1D: found among a model's modules, it takes an adapter.
class LinearLayer {
 public:
  LinearLayer(
      LinearDivision division,
      LayerContext context,
      const LinearOptions& options)
      : division(division), context(std::move(context)), options(options) {}
  virtual ~LinearLayer() = default;

  virtual torch::nn::Module& module() = 0;
  virtual const at::Tensor& weight() const = 0;
  virtual const at::Tensor& bias() const = 0; ///< undefined without one

  const LinearDivision division;
  const LayerContext context;
  const LinearOptions options;
  std::shared_ptr<LinearAdapter> adapter; ///< null: nothing is added
};

/// The module of an adapter, registered in its linear layer.
inline constexpr const char* kAdapterModule = "adapter";

/// Whether a parameter of this name belongs to an adapter: a model's own files
/// do not have it.
bool is_adapter_parameter(std::string_view name);

/// y = x W^T + b, and what an adapter adds. A handle: the layer is registered
/// in the module that owns it, with parameters `weight` [out, in] and `bias`
/// [out]. With a context of a group it is a Linear1D, divided as the function
/// says that makes it.
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

  /// For code that multiplies by it itself.
  /// @throws tessera::Error when the layer has an adapter, which that code
  ///     would leave out.
  const at::Tensor& weight() const;
  const at::Tensor& bias() const; ///< undefined without one

 private:
  static Linear make(
      torch::nn::Module& owner,
      const std::string& name,
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& options);

  at::Tensor multiply(const at::Tensor& x, bool entered);

  torch::nn::Linear plain_{nullptr};
  Linear1D parallel_{nullptr};
  std::shared_ptr<LinearLayer> layer_;
};

} // namespace tessera::zoo

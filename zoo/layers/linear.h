// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Linear` is a linear layer of a model, plain or tensor-parallel.

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
  /// Features are divided in multiples of this, such as the size of a head.
  int64_t unit = 1;
  /// Standard deviation of initial weights; biases start at 0.
  double deviation = 0.02;
};

/// `LinearAdapter` computes an addend of a linear layer's result, such as
/// LoRA's product.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;

  /// @param x [..., in], the input of the layer's matrix product: after
  ///     LayerContext::enter() in a column-parallel layer, this rank's features
  ///     in a row-parallel layer.
  /// @return [..., out], as the layer returns it. Collective with a group.
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// `LinearLayer` is the module that a Linear registers in its owner, in
/// addition to a torch::nn::Linear or a Linear1D. It is found among the modules
/// of a model and holds the adapter.
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
  std::shared_ptr<LinearAdapter> adapter; ///< null: none
};

/// The name of an adapter's module in its linear layer.
inline constexpr const char* kAdapterModule = "adapter";

/// Whether a parameter of this name belongs to an adapter; the model's own
/// files do not contain it.
bool is_adapter_parameter(std::string_view name);

/// y = x W^T + b, plus the adapter's result. A handle: the layer is registered
/// in its owner module, with parameters `weight` [out, in] and `bias` [out].
/// With a group it is a Linear1D, partitioned as the function that creates it
/// says.
class Linear {
 public:
  Linear() = default;

  /// Column-parallel: output features are divided; takes activations between
  /// layers, returns this rank's features.
  static Linear column(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Row-parallel: input features are divided; takes this rank's features,
  /// returns activations between layers.
  static Linear row(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Not partitioned: activations between layers in and out.
  static Linear undivided(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// x [..., in], laid out as the division says. Collective with a group.
  at::Tensor forward(const at::Tensor& x);

  /// Applies several column-parallel layers to the same activation, which is
  /// communicated only once ([Note: products while activations travel]).
  static std::vector<at::Tensor> forward_columns(
      const LayerContext& context,
      const at::Tensor& x,
      const std::vector<Linear*>& columns);

  /// forward() of a column-parallel layer, on the result of
  /// LayerContext::enter().
  at::Tensor forward_entered(const at::Tensor& entered);

  /// The weight, for code that multiplies by it directly.
  /// @throws tessera::Error if the layer has an adapter, which that code would
  ///     ignore.
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

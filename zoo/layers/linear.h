// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Linear` is a linear layer of a model that may have an adapter.

#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/zoo/layers/layer_context.h"

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

struct LinearOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = true;
  /// Features are divided in multiples of this, such as those of the heads
  /// that share a key.
  int64_t unit = 1;
  /// Standard deviation of initial weights; biases start at 0.
  double deviation = 0.02;
  /// For more ranks than units: features are then divided in multiples of this,
  /// such as those of one head; 0: every rank has the whole layer. By default,
  /// too many ranks are an error.
  std::optional<int64_t> fine_unit = {};
  /// The result, adapter included, is divided by the root of `in`, so that
  /// weights have a deviation of about 1 (ModelCenter). Only without a bias.
  bool length_scale = false;
};

/// `LinearAdapter` changes a linear layer's result: LoRA adds a product.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;

  /// Whether it changes anything now.
  virtual bool is_active() const {
    return true;
  }
  /// @param x [..., in], the layer's input.
  /// @param product [..., out], x W^T + b.
  /// @return [..., out], divided as `product`. Collective with a group.
  virtual at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& product) = 0;
};

/// `LinearLayer` is the module that a Linear registers in its owner: a
/// torch::nn::Linear that may have an adapter. It is found among the modules of
/// a model.
class LinearLayer : public torch::nn::LinearImpl {
 public:
  LinearLayer(
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& sizes);

  const LinearDivision division;
  const LayerContext context;
  const LinearOptions sizes;
  std::shared_ptr<LinearAdapter> adapter; ///< null: none
};

/// The name of an adapter's module in its linear layer.
inline constexpr const char* kAdapterModule = "adapter";

/// As at::linear(); for a few rows without gradients on the CPU faster, and
/// then equal up to rounding.
/// @param bias may be undefined.
at::Tensor linear_product(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// Whether a parameter of this name belongs to an adapter; the model's own
/// files do not contain it.
bool is_adapter_parameter(std::string_view name);

/// y = x W^T + b, as the adapter changes it; LinearOptions::length_scale
/// divides it. A handle: the layer is registered in its owner module, with
/// parameters `weight` [out, in] and `bias` [out]. With a group it is
/// partitioned as the function that creates it says; what it takes and returns
/// looks whole ([Note: DTensors]).
class Linear {
 public:
  Linear() = default;

  /// Column-parallel: output features are divided.
  static Linear column(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Row-parallel: input features are divided.
  static Linear row(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Not partitioned.
  static Linear undivided(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const LinearOptions& options);

  /// Without a group: every rank computes it from whole hidden states.
  static Linear full(
      torch::nn::Module& owner,
      const std::string& name,
      const LinearOptions& options) {
    return column(owner, name, LayerContext(), options);
  }

  /// x [..., in] -> [..., out]. Collective with a group.
  at::Tensor forward(const at::Tensor& x);

  /// Applies several column-parallel layers to the same activation, which is
  /// communicated only once ([Note: products while activations travel]).
  static std::vector<at::Tensor> forward_columns(
      const at::Tensor& x,
      const std::vector<Linear*>& columns);

  /// The weight, for code that multiplies by it directly.
  /// @throws tessera::Error if the layer has an adapter or a scale, which that
  ///     code would ignore.
  const at::Tensor& weight() const;
  const at::Tensor& bias() const; ///< undefined without one

 private:
  static Linear make(
      torch::nn::Module& owner,
      const std::string& name,
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& options);

  /// The result, from the product of input and weight.
  at::Tensor finished(const at::Tensor& product, const at::Tensor& x) const;

  std::shared_ptr<LinearLayer> layer_;
};

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/linear.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/few_rows_linear.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <cmath>
#include <optional>

namespace tessera::zoo {

namespace {

constexpr std::string_view kInAdapter = ".adapter."; // kAdapterModule

} // namespace

at::Tensor linear_product(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  return runtime::takes_few_rows(x, weight, bias)
             ? runtime::few_rows_linear(x, weight, bias)
             : at::linear(x, weight, bias);
}

bool is_adapter_parameter(std::string_view name) {
  return name.find(kInAdapter) != std::string_view::npos;
}

LinearLayer::LinearLayer(
    LinearDivision division,
    const LayerContext& context,
    const LinearOptions& sizes)
    : torch::nn::LinearImpl(
          context.parallel() == nullptr
              ? torch::nn::LinearOptions(sizes.in, sizes.out).bias(sizes.bias)
              : torch::nn::LinearOptions(1, 1).bias(sizes.bias)),
      division(division),
      context(context),
      sizes(sizes) {
  TESSERA_CHECK(
      !sizes.length_scale || !sizes.bias,
      "a linear layer [{}, {}] has a bias and length_scale; use one of them",
      sizes.out,
      sizes.in);
  if (context.parallel() == nullptr) {
    const at::NoGradGuard no_grad;
    weight.normal_(0, sizes.deviation);
    if (sizes.bias) {
      bias.zero_();
    }
    return;
  }
  options = torch::nn::LinearOptions(sizes.in, sizes.out).bias(sizes.bias);
  weight = parameters_["weight"] = DistributedParameter(
      {sizes.out, sizes.in}, normal_init(0, sizes.deviation));
  if (sizes.bias) {
    bias = parameters_["bias"] =
        DistributedParameter({sizes.out}, zeros_init());
  }
}

Linear Linear::make(
    torch::nn::Module& owner,
    const std::string& name,
    LinearDivision division,
    const LayerContext& context,
    const LinearOptions& options) {
  std::optional<sharding::NumberedInit> undrawn;
  if (context.parallel() != nullptr) {
    // Declared parameters draw no numbers; LibTorch's constructor does.
    undrawn.emplace(0);
  }
  Linear linear;
  linear.layer_ = owner.register_module(
      name, std::make_shared<LinearLayer>(division, context, options));
  return linear;
}

Linear Linear::column(
    torch::nn::Module& owner,
    const std::string& name,
    const LayerContext& context,
    const LinearOptions& options) {
  return make(owner, name, LinearDivision::kColumn, context, options);
}

Linear Linear::row(
    torch::nn::Module& owner,
    const std::string& name,
    const LayerContext& context,
    const LinearOptions& options) {
  return make(owner, name, LinearDivision::kRow, context, options);
}

Linear Linear::undivided(
    torch::nn::Module& owner,
    const std::string& name,
    const LayerContext& context,
    const LinearOptions& options) {
  return make(owner, name, LinearDivision::kData, context, options);
}

at::Tensor Linear::forward(const at::Tensor& x) {
  // LinearImpl::forward() multiplies and then adds the bias: it rounds as
  // LibTorch's layer does, but with a group its communication would not overlap
  // with the product.
  at::Tensor product;
  if (runtime::takes_few_rows(x, layer_->weight, layer_->bias)) {
    product = runtime::few_rows_linear(x, layer_->weight, layer_->bias);
  } else if (layer_->context.parallel() == nullptr) {
    product = layer_->forward(x);
  } else if (
      layer_->division == LinearDivision::kRow && layer_->bias.defined()) {
    // The bias is added to the sum over the ranks; rounded alike on one rank.
    product = at::linear(x, layer_->weight);
    product = product + layer_->bias.to(product.scalar_type());
  } else {
    product = at::linear(x, layer_->weight, layer_->bias);
  }
  return finished(product, x);
}

at::Tensor Linear::finished(const at::Tensor& product, const at::Tensor& x)
    const {
  const at::Tensor all = layer_->adapter && layer_->adapter->is_active()
                             ? layer_->adapter->forward(x, product)
                             : product;
  return layer_->sizes.length_scale
             ? all * (1 / std::sqrt(static_cast<double>(layer_->sizes.in)))
             : all;
}

std::vector<at::Tensor> Linear::forward_columns(
    const at::Tensor& x,
    const std::vector<Linear*>& columns) {
  std::vector<at::Tensor> results;
  if (columns.front()->layer_->context.parallel() == nullptr) {
    for (Linear* column : columns) {
      results.push_back(column->forward(x));
    }
    return results;
  }
  std::vector<sharding::LinearWeights> weights;
  for (const Linear* column : columns) {
    weights.push_back({column->layer_->weight, column->layer_->bias});
  }
  results = linear_each(x, weights);
  for (size_t i = 0; i < columns.size(); ++i) {
    results[i] = columns[i]->finished(results[i], x);
  }
  return results;
}

const at::Tensor& Linear::weight() const {
  TESSERA_CHECK(
      !layer_->adapter,
      "a linear layer [{}, {}] has an adapter, but the model uses its weight directly, as in the head of a language model; remove it from the adapter's target_modules, or name it in modules_to_save",
      layer_->sizes.out,
      layer_->sizes.in);
  TESSERA_CHECK(
      !layer_->sizes.length_scale,
      "a linear layer [{}, {}] has length_scale, but its weight is used directly",
      layer_->sizes.out,
      layer_->sizes.in);
  return layer_->weight;
}

const at::Tensor& Linear::bias() const {
  return layer_->bias;
}

} // namespace tessera::zoo

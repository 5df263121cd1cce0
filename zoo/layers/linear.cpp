// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/linear.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/overlapped_linear.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace tessera::zoo {

namespace {

constexpr std::string_view kInAdapter = ".adapter."; // kAdapterModule

class PlainLinear : public torch::nn::LinearImpl, public LinearLayer {
 public:
  PlainLinear(
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& options)
      : torch::nn::LinearImpl(torch::nn::LinearOptions(options.in, options.out)
                                  .bias(options.bias)),
        LinearLayer(division, context, options) {}

  torch::nn::Module& module() override {
    return *this;
  }
  const at::Tensor& weight() const override {
    return torch::nn::LinearImpl::weight;
  }
  const at::Tensor& bias() const override {
    return torch::nn::LinearImpl::bias;
  }
};

class DividedLinear : public ParallelLinearImpl, public LinearLayer {
 public:
  DividedLinear(
      LinearDivision division,
      const LayerContext& context,
      const LinearOptions& options)
      : ParallelLinearImpl(
            division,
            *context.parallel(),
            parallel_options(options)),
        LinearLayer(division, context, options) {}

  torch::nn::Module& module() override {
    return *this;
  }
  const at::Tensor& weight() const override {
    return ParallelLinearImpl::weight;
  }
  const at::Tensor& bias() const override {
    return ParallelLinearImpl::bias;
  }

 private:
  static ParallelLinearOptions parallel_options(const LinearOptions& options) {
    ParallelLinearOptions parallel;
    parallel.in = options.in;
    parallel.out = options.out;
    parallel.bias = options.bias;
    parallel.unit = options.unit;
    parallel.weight_init = normal_init(0, options.deviation);
    parallel.bias_init = zeros_init();
    return parallel;
  }
};

} // namespace

bool is_adapter_parameter(std::string_view name) {
  return name.find(kInAdapter) != std::string_view::npos;
}

Linear Linear::make(
    torch::nn::Module& owner,
    const std::string& name,
    LinearDivision division,
    const LayerContext& context,
    const LinearOptions& options) {
  Linear linear;
  if (context.parallel() != nullptr) {
    const auto layer =
        std::make_shared<DividedLinear>(division, context, options);
    owner.register_module(name, layer);
    linear.layer_ = layer;
    linear.parallel_ = Linear1D(std::shared_ptr<Linear1DImpl>(layer));
    return linear;
  }
  const auto layer = std::make_shared<PlainLinear>(division, context, options);
  owner.register_module(name, layer);
  linear.layer_ = layer;
  linear.plain_ =
      torch::nn::Linear(std::shared_ptr<torch::nn::LinearImpl>(layer));
  const at::NoGradGuard no_grad;
  linear.plain_->weight.normal_(0, options.deviation);
  if (options.bias) {
    linear.plain_->bias.zero_();
  }
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

at::Tensor Linear::multiply(const at::Tensor& x, bool entered) {
  if (parallel_.is_empty()) {
    return plain_->forward(x);
  }
  return entered ? parallel_->forward_entered(x) : parallel_->forward(x);
}

at::Tensor Linear::forward(const at::Tensor& x) {
  if (!layer_->adapter) {
    return multiply(x, /*entered=*/false);
  }
  return layer_->division == LinearDivision::kColumn
             ? forward_entered(layer_->context.enter(x))
             : multiply(x, /*entered=*/false) + layer_->adapter->forward(x);
}

std::vector<at::Tensor> Linear::forward_columns(
    const LayerContext& context,
    const at::Tensor& x,
    const std::vector<Linear*>& columns) {
  std::vector<at::Tensor> results;
  const bool adapted =
      std::any_of(columns.begin(), columns.end(), [](const Linear* column) {
        return column->layer_->adapter != nullptr;
      });
  if (adapted) { // adapters take the same whole input
    const at::Tensor entered = context.enter(x);
    for (Linear* column : columns) {
      results.push_back(column->forward_entered(entered));
    }
    return results;
  }
  if (const TensorParallel* how = context.parallel()) {
    std::vector<sharding::LinearWeights> weights;
    for (const Linear* column : columns) {
      weights.push_back({column->weight(), column->bias()});
    }
    return enter_linear(x, weights, *how);
  }
  for (Linear* column : columns) {
    results.push_back(column->forward(x));
  }
  return results;
}

at::Tensor Linear::forward_entered(const at::Tensor& entered) {
  const at::Tensor product = multiply(entered, /*entered=*/true);
  return layer_->adapter ? product + layer_->adapter->forward(entered)
                         : product;
}

const at::Tensor& Linear::weight() const {
  TESSERA_CHECK(
      !layer_->adapter,
      "a linear layer [{}, {}] has an adapter, but the model uses its weight directly, as in the head of a language model; remove it from the adapter's target_modules, or name it in modules_to_save",
      layer_->options.out,
      layer_->options.in);
  return layer_->weight();
}

const at::Tensor& Linear::bias() const {
  return layer_->bias();
}

} // namespace tessera::zoo

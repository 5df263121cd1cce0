// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/linear.h"

#include "tessera/sharding/parallel/overlapped_linear.h"

#include <ATen/core/grad_mode.h>

namespace tessera::zoo {

Linear Linear::make(
    torch::nn::Module& owner,
    const std::string& name,
    LinearDivision division,
    const LayerContext& context,
    const LinearOptions& options) {
  Linear linear;
  if (const TensorParallel* how = context.parallel()) {
    ParallelLinearOptions parallel;
    parallel.in = options.in;
    parallel.out = options.out;
    parallel.bias = options.bias;
    parallel.unit = options.unit;
    parallel.weight_init = normal_init(0, options.deviation);
    parallel.bias_init = zeros_init();
    linear.parallel_ =
        owner.register_module(name, Linear1D(division, *how, parallel));
    return linear;
  }
  linear.plain_ = owner.register_module(
      name,
      torch::nn::Linear(torch::nn::LinearOptions(options.in, options.out)
                            .bias(options.bias)));
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

at::Tensor Linear::forward(const at::Tensor& x) {
  return parallel_.is_empty() ? plain_->forward(x) : parallel_->forward(x);
}

std::vector<at::Tensor> Linear::forward_columns(
    const LayerContext& context,
    const at::Tensor& x,
    const std::vector<Linear*>& columns) {
  std::vector<at::Tensor> results;
  if (const TensorParallel* how = context.parallel()) {
    std::vector<LinearWeights> weights;
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
  return parallel_.is_empty() ? plain_->forward(entered)
                              : parallel_->forward_entered(entered);
}

const at::Tensor& Linear::weight() const {
  return parallel_.is_empty() ? plain_->weight : parallel_->weight;
}

const at::Tensor& Linear::bias() const {
  return parallel_.is_empty() ? plain_->bias : parallel_->bias;
}

} // namespace tessera::zoo

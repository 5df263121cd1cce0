// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_layer.h"

#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/types.h>

#include <cmath>

namespace tessera::zoo {

namespace {

constexpr const char* kA = "lora_A";
constexpr const char* kB = "lora_B";

InitMethod init_of_a(const LoraLayerOptions& options, int64_t in) {
  if (options.init == LoraInit::kGaussian) {
    return normal_init(0, 1 / static_cast<double>(options.r));
  }
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  return uniform_init(-bound, bound);
}

InitMethod init_of_b(const LoraLayerOptions& options) {
  if (options.init != LoraInit::kRandom) {
    return zeros_init();
  }
  const double bound = 1 / std::sqrt(static_cast<double>(options.r));
  return uniform_init(-bound, bound);
}

} // namespace

LoraLayer::LoraLayer(
    const LinearLayer& layer,
    const LoraLayerOptions& options,
    const LoraLayer* first)
    : context_(layer.context), options_(options) {
  const auto [in, out] = std::pair(layer.sizes.in, layer.sizes.out);
  const auto like = DistributedParameterOptions{
      layer.weight.scalar_type(), layer.weight.device()};
  const auto* divided = sharding::divided_parameter(layer.weight);
  const auto divide =
      [&](const at::Tensor& weight, const char* name, TensorDivision division) {
        if (divided != nullptr && divided->division == division) {
          divide_weight(
              weight, name, division, divided->split().unit(), *divided->tp);
        }
      };
  if (first != nullptr) {
    a_ = first->a_;
  } else {
    a_ = register_parameter(
        kA,
        DistributedParameter({options.r, in}, init_of_a(options, in), like));
    divide(a_, kA, TensorDivision::kRow);
  }
  b_ = register_parameter(
      kB, DistributedParameter({out, options.r}, init_of_b(options), like));
  divide(b_, kB, TensorDivision::kColumn);
}

std::shared_ptr<LoraLayer> LoraLayer::add(
    LinearLayer& layer,
    const LoraLayerOptions& options,
    const LoraLayer* first) {
  const auto made = std::make_shared<LoraLayer>(layer, options, first);
  made->train(layer.is_training());
  layer.register_module(kAdapterModule, made);
  layer.adapter = made;
  return made;
}

void LoraLayer::remove(LinearLayer& layer) {
  layer.unregister_module(kAdapterModule);
  layer.adapter.reset();
}

LoraLayer* LoraLayer::of(const LinearLayer& layer) {
  return dynamic_cast<LoraLayer*>(layer.adapter.get());
}

at::Tensor LoraLayer::forward(const at::Tensor& x) {
  const at::Tensor input = context_.dropout(x, options_.dropout, is_training());
  return at::linear(at::linear(input, a_) * options_.scaling, b_);
}

at::Tensor LoraLayer::product() const {
  const sharding::DTensorGuard parts;
  return at::matmul(b_.to(at::kFloat), a_.to(at::kFloat)) * options_.scaling;
}

} // namespace tessera::zoo

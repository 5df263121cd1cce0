// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include "tessera/sharding/tensor_parallel/divided_weight.h"

namespace tessera {

std::shared_ptr<const TensorParallel> tensor_parallel_of(
    const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (const auto* divided = sharding::divided_parameter(parameter)) {
      return divided->tp;
    }
  }
  return nullptr;
}

TensorSpecs specs_in(const torch::nn::Module& module) {
  TensorSpecs specs;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    const auto [found, is_new] = specs.try_emplace(
        tensor.unsafeGetTensorImpl(),
        full_spec({}, tensor.sizes().vec(), tensor.scalar_type()));
    TensorSpec& spec = found->second;
    spec.names.push_back(name);
    if (const auto* divided = sharding::divided_parameter(tensor)) {
      spec.sizes = divided->spec.sizes;
      spec.axes = divided->spec.axes;
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  return specs;
}

TensorSpec spec_of(const at::Tensor& tensor, const TensorSpecs& specs) {
  const auto found = specs.find(tensor.unsafeGetTensorImpl());
  return found == specs.end()
             ? full_spec({}, tensor.sizes().vec(), tensor.scalar_type())
             : found->second;
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/expert_parallel/divided_experts.h"

#include <algorithm>

namespace tessera::sharding {

namespace {

bool is_divided(const torch::nn::Module& module) {
  return dynamic_cast<const DividedExperts*>(&module) != nullptr;
}

} // namespace

bool has_divided_experts(const torch::nn::Module& module) {
  const auto modules = module.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& one) {
    return is_divided(*one);
  });
}

std::unordered_set<const c10::TensorImpl*> parameters_of_divided_experts(
    const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> found;
  for (const auto& one : module.modules(/*include_self=*/false)) {
    if (is_divided(*one)) {
      for (const at::Tensor& parameter : one->parameters()) {
        found.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  return found;
}

} // namespace tessera::sharding

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/module_kind.h"

#include "tessera/sharding/groups/group_policy.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace tessera::sharding {

namespace {

using torch::nn::Module;

/// Whether `module` is of one of these types, or derives from one.
template <typename... Types>
bool is_any_of(const Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

ModuleRole role_of(const Module& module) {
  if (is_any_of<
          torch::nn::SequentialImpl,
          torch::nn::ModuleListImpl,
          torch::nn::ModuleDictImpl,
          ModuleContainer>(module)) {
    return ModuleRole::kContainer;
  }
  if (is_any_of<torch::nn::EmbeddingImpl, torch::nn::EmbeddingBagImpl>(
          module)) {
    return ModuleRole::kEmbedding;
  }
  return is_any_of<torch::nn::LinearImpl>(module) ? ModuleRole::kLinear
                                                  : ModuleRole::kOther;
}

} // namespace

ModuleKind kind_of(const Module& module) {
  if (const auto* foreign = dynamic_cast<const ForeignModule*>(&module)) {
    return foreign->kind();
  }
  return {c10::demangle(typeid(module).name()), role_of(module)};
}

} // namespace tessera::sharding

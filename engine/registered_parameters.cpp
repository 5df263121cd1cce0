// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/registered_parameters.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/groups/module_choices.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <string>
#include <unordered_set>
#include <utility>

namespace tessera::engine {

namespace {

/// Module's public functions copy the dictionary with its names.
struct ModuleDictionary : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& of(
      const torch::nn::Module& module) {
    return module.*(&ModuleDictionary::parameters_);
  }
};

template <typename... Layers>
at::Tensor weight_of(const torch::nn::Module& module) {
  at::Tensor weight;
  const auto read = [&](const auto* layer) {
    if (layer != nullptr) {
      weight = layer->weight;
    }
  };
  (read(dynamic_cast<const Layers*>(&module)), ...);
  return weight;
}

} // namespace

void warn_of_assigned_weights(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  for (const auto& layer : module.named_modules()) {
    const at::Tensor weight = weight_of<
        torch::nn::LinearImpl,
        torch::nn::EmbeddingImpl,
        torch::nn::EmbeddingBagImpl>(*layer.value());
    const at::Tensor* registered =
        ModuleDictionary::of(*layer.value()).find("weight");
    if (!weight.defined() || registered == nullptr ||
        registered->is_same(weight)) {
      continue;
    }
    std::string used = "a tensor that is not registered";
    for (const auto& item : parameters) {
      if (item.value().is_same(weight)) {
        used = "'" + item.key() + "'";
      }
    }
    log_warning(
        "'{}' computes with {}, which was assigned to its `weight`; its registered parameter '{}.weight' is another tensor, which is not trained, and which files will contain. To share a weight, call torch::linear() or torch::embedding() with it instead of a layer of its own.",
        layer.key(),
        used,
        layer.key());
  }
}

RegisteredParameters::RegisteredParameters(const torch::nn::Module& module)
    : parameters_(module.named_parameters()) {}

bool RegisteredParameters::are_those_of(const torch::nn::Module& module) const {
  size_t count = 0;
  bool same = true;
  module.apply([&](const torch::nn::Module& part) {
    for (const auto& local : ModuleDictionary::of(part)) {
      if (local.value().defined()) {
        same = same && count < parameters_.size() &&
               parameters_[count].value().is_same(local.value());
        ++count;
      }
    }
  });
  return same && count == parameters_.size();
}

void RegisteredParameters::check(
    const torch::nn::Module& module,
    const std::vector<ModuleRule>& rules,
    const OtherNames& other_names) {
  if (are_those_of(module)) {
    return;
  }
  const sharding::ModuleChoices choices(module, rules, other_names);
  Named now = module.named_parameters();
  const auto check_all = [&](const Named& of, const Named& in, auto change) {
    std::unordered_set<const c10::TensorImpl*> known;
    for (const auto& item : in) {
      known.insert(item.value().unsafeGetTensorImpl());
    }
    for (const auto& item : of) {
      // A further name of a parameter is no new one.
      TESSERA_CHECK(
          known.contains(item.value().unsafeGetTensorImpl()) ||
              choices.ignores(item.key()),
          "parameter '{}' was {} after wrap(): the engine would not train or save the module as it is now. Change it before wrap(), or call engine.unwrap() first and wrap it again; to change values, write them in place, in engine.gather(..., writable).",
          item.key(),
          change(item.key()));
    }
  };
  check_all(now, parameters_, [&](const std::string& name) {
    return parameters_.contains(name) ? "replaced" : "added";
  });
  check_all(
      parameters_, now, [](const std::string& /*name*/) { return "removed"; });
  parameters_ = std::move(now);
}

} // namespace tessera::engine

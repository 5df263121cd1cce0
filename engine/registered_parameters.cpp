// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/registered_parameters.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/groups/module_choices.h"

#include <cstddef>
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

} // namespace

RegisteredParameters::RegisteredParameters(const torch::nn::Module& module)
    : parameters_(module.named_parameters()) {}

bool RegisteredParameters::are_those_of(const torch::nn::Module& module) const {
  size_t count = 0;
  bool same = true;
  module.apply([&](const torch::nn::Module& part) {
    for (const auto& own : ModuleDictionary::of(part)) {
      if (own.value().defined()) {
        same = same && count < parameters_.size() &&
               parameters_[count].value().is_same(own.value());
        ++count;
      }
    }
  });
  return same && count == parameters_.size();
}

void RegisteredParameters::check(
    const torch::nn::Module& module,
    const std::vector<ModuleRule>& rules) {
  if (are_those_of(module)) {
    return;
  }
  const sharding::ModuleChoices choices(module, rules);
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

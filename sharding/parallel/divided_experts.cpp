// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/divided_experts.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace tessera::sharding {

namespace {

using Parameters = std::unordered_set<const c10::TensorImpl*>;

Parameters parameters_of_experts(const torch::nn::Module& module) {
  Parameters found;
  for (const auto& parameter : divided_experts_of(module)->parameters()) {
    found.insert(parameter.unsafeGetTensorImpl());
  }
  return found;
}

/// Registers `module` as "a.b.c", with otherwise empty modules for "a" and
/// "a.b".
void put(
    torch::nn::Module& root,
    const std::string& path,
    const std::shared_ptr<torch::nn::Module>& module) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) {
    root.register_module(path, module);
    return;
  }
  const std::string first = path.substr(0, dot);
  const auto children = root.named_children();
  const auto* known = children.find(first);
  put(known != nullptr
          ? **known
          : *root.register_module(
                first, std::make_shared<torch::nn::Module>("Holder")),
      path.substr(dot + 1),
      module);
}

} // namespace

bool has_divided_experts(const torch::nn::Module& module) {
  return !divided_experts_of(module)->children().empty();
}

bool is_divided_experts(
    const std::string& /*path*/,
    const torch::nn::Module& module) {
  return dynamic_cast<const DividedExperts*>(&module) != nullptr;
}

std::shared_ptr<torch::nn::Module> divided_experts_of(
    const torch::nn::Module& module) {
  auto root = std::make_shared<torch::nn::Module>("ExpertsOfThisRank");
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (is_divided_experts({}, *item.value())) {
      put(*root, item.key(), item.value());
    }
  }
  return root;
}

void check_experts_apart(
    const torch::nn::Module& module,
    const IgnoredParameters& ignored) {
  const Parameters experts = parameters_of_experts(module);
  if (experts.empty()) {
    return;
  }
  const auto parameters = take_parameter_census(module, ignored);
  const auto is_expert = [&](const ParameterRecord& record) {
    return experts.contains(record.tensor.unsafeGetTensorImpl());
  };
  const auto of_expert =
      std::find_if(parameters.begin(), parameters.end(), is_expert);
  const auto other =
      std::find_if_not(parameters.begin(), parameters.end(), is_expert);
  TESSERA_CHECK(
      of_expert == parameters.end() || other == parameters.end(),
      "wrap: '{}' belongs to an expert that other ranks do not have, and '{}' does not; an engine shards all its parameters over the same ranks. Use ExpertEngines instead of wrap().",
      of_expert->name(),
      other->name());
}

} // namespace tessera::sharding

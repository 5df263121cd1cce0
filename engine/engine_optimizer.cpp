// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_optimizer.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/paging/pager.h"

#include <string>
#include <unordered_map>

namespace tessera {

EngineOptimizer::EngineOptimizer(
    Engine& engine,
    const std::optional<UpdateRule>& rule,
    double lr,
    std::optional<double> weight_decay,
    std::vector<ParameterGroup> groups)
    : engine_(&engine), groups_(std::move(groups)) {
  ParameterRule all{.lr_scale = 1, .weight_decay = weight_decay, .rule = rule};
  if (rule && !weight_decay) {
    all.weight_decay = rule->optimizer().default_weight_decay();
  }
  for (const at::Tensor& parameter : engine.trained_parameters()) {
    engine.set_parameter_options(parameter, all);
  }
  const auto name_of = [&](const at::Tensor& parameter) {
    const sharding::PageTable& pages = engine.pager().pages();
    return pages.parameter(pages.find(parameter)).record.name();
  };
  std::unordered_map<const c10::TensorImpl*, size_t> grouped;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ParameterGroup& group = groups_[g];
    TESSERA_CHECK(
        !group.lr || lr > 0,
        "a group of parameters has the learning rate {}, but the optimizer's own is {}, of which it would be a multiple. Use an lr above 0.",
        group.lr.value_or(0),
        lr);
    ParameterRule local{.weight_decay = group.weight_decay};
    if (group.lr) {
      local.lr_scale = *group.lr / lr;
    }
    for (const at::Tensor& parameter : group.parameters) {
      engine.set_parameter_options(parameter, local);
      const auto [found, is_new] =
          grouped.emplace(parameter.unsafeGetTensorImpl(), g);
      TESSERA_CHECK(
          is_new,
          "parameter '{}' is {} of the optimizer; list it once, in one group.",
          name_of(parameter),
          found->second == g
              ? formatted("twice in group {}", g)
              : formatted("in groups {} and {}", found->second, g));
    }
  }
  engine.set_learning_rate(lr);
}

} // namespace tessera

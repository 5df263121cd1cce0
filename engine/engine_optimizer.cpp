// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_optimizer.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/error.h"

#include <unordered_set>

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
  std::unordered_set<const c10::TensorImpl*> grouped;
  for (const ParameterGroup& group : groups_) {
    TESSERA_CHECK(
        !group.lr || lr > 0,
        "a group of parameters has the learning rate {}, but the optimizer's own is {}, of which it would be a multiple. Use an lr above 0.",
        group.lr.value_or(0),
        lr);
    ParameterRule own{.weight_decay = group.weight_decay};
    if (group.lr) {
      own.lr_scale = *group.lr / lr;
    }
    for (const at::Tensor& parameter : group.parameters) {
      TESSERA_CHECK(
          grouped.insert(parameter.unsafeGetTensorImpl()).second,
          "a parameter of sizes {} is in two groups of the optimizer; leave it in one.",
          parameter.sizes());
      engine.set_parameter_options(parameter, own);
    }
  }
  engine.set_learning_rate(lr);
}

} // namespace tessera

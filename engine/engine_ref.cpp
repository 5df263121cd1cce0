// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_ref.h"

#include "tessera/sharding/parallel/divided_experts.h"

namespace tessera {

std::vector<WholeModel> EngineRef::whole_models() {
  if (auto* const* engines = std::get_if<ExpertEngines*>(&engine_)) {
    return (*engines)->whole_models();
  }
  std::vector<WholeModel> models;
  models.push_back(std::get<Engine*>(engine_)->whole_model());
  return models;
}

OwnedEngine::OwnedEngine(
    World& world,
    const std::shared_ptr<torch::nn::Module>& module,
    const EngineOptions& options) {
  if (has_divided_experts(*module)) {
    engine_ = std::make_unique<ExpertEngines>(world, module, options);
  } else {
    engine_ = std::make_unique<Engine>(world, module, options);
  }
}

} // namespace tessera

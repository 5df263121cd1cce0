// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_ref.h"

namespace tessera {

std::vector<WholeModel> EngineRef::whole_models() {
  if (auto* const* engines = std::get_if<ExpertEngines*>(&engine_)) {
    return (*engines)->whole_models();
  }
  std::vector<WholeModel> models;
  models.push_back(std::get<Engine*>(engine_)->whole_model());
  return models;
}

} // namespace tessera

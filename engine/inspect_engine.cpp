// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/inspect_engine.h"

namespace tessera {

std::vector<TensorSummary> inspect_model(
    Engine& engine,
    const std::string& pattern) {
  engine.check_usable("inspect_model");
  engine.optimizer_->finish_updates();
  return inspect_model(
      *engine.pager_,
      pattern,
      engine.scaler_.is_active() ? engine.scaler_.scale() : 1);
}

std::vector<TensorSummary> inspect_tensor(
    Engine& engine,
    const TensorRecorder& recorder) {
  engine.check_usable("inspect_tensor");
  engine.optimizer_->finish_updates();
  return inspect_tensor(
      *engine.pager_,
      recorder,
      engine.scaler_.is_active() ? engine.scaler_.scale() : 1);
}

} // namespace tessera

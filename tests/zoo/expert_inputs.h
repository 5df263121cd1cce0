// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of models with experts share.

#include "tessera/zoo/models/model.h"

#include <nlohmann/json.hpp>

#include <cstdint>

namespace tessera::zoo {

inline constexpr int64_t kRows = 4;
inline constexpr int64_t kLength = 16;

/// Qwen's experts, with losses of routers that weigh enough to be seen.
inline const nlohmann::json kBalanced = {
    {"output_router_logits", true},
    {"router_aux_loss_coef", 0.5},
    {"router_z_loss_coef", 0.1}};

/// Rows of one of `count` ranks.
inline ModelInput part_of(const ModelInput& full, int index, int count) {
  NamedTensors own = full.named();
  for (auto& [name, tensor] : own) {
    tensor = tensor.narrow(0, index * kRows / count, kRows / count);
  }
  return ModelInput::from_named(own);
}

} // namespace tessera::zoo

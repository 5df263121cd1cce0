// SPDX-License-Identifier: Apache-2.0
#pragma once
// `find_pieces()` divides a module by its structure, before sizes are
// considered.

#include "tessera/sharding/groups/group_policy.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

/// Parameters of one part of the model, in registration order.
struct ModulePiece {
  std::string path; ///< path of the module; "" for the wrapped module
  std::vector<const c10::TensorImpl*> parameters; ///< not empty
  /// Named by a rule: it is not merged with other small ones.
  bool is_named = false;
  /// Holds a vocabulary: it is not merged.
  bool is_apart = false;
  /// ZeRO stage requested by the module itself (group_policy.h).
  std::optional<int> zero_stage = {};
};

/// Divides `module` into blocks: those that `policy` names, or else children of
/// a container and siblings of one composite type.
/// @throws tessera::Error when a rule matches nothing.
std::vector<ModulePiece> find_pieces(
    const torch::nn::Module& module,
    const GroupPolicy& policy);

} // namespace tessera::sharding

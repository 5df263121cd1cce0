// SPDX-License-Identifier: Apache-2.0
#pragma once
// `find_units()` divides a module by its structure, before sizes are
// considered.

#include "tessera/sharding/groups/group_policy.h"
#include "tessera/sharding/groups/module_choices.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera::sharding {

/// Parameters of one part of the model, in registration order.
struct ModuleUnit {
  std::string path; ///< path of the module; "" for the wrapped module
  std::vector<const c10::TensorImpl*> parameters; ///< not empty
  /// Chosen to be a group: it is not merged with other small ones.
  bool is_named = false;
  /// Holds a vocabulary: it is not merged.
  bool is_apart = false;
};

/// Divides `module` into blocks: those that rules name, or else children of
/// a container and siblings of one composite type; and those that configure()
/// makes groups.
std::vector<ModuleUnit> find_units(
    const torch::nn::Module& module,
    const GroupPolicy& policy,
    const ModuleChoices& choices);

} // namespace tessera::sharding

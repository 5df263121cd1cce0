// SPDX-License-Identifier: Apache-2.0
#pragma once
// `grouped()` divides a module as an engine would.

#include "tessera/sharding/groups/grouping.h"

#include <utility>
#include <vector>

namespace tessera::tests {

inline std::vector<sharding::GroupSpec> grouped(
    const torch::nn::Module& module,
    const GroupPolicy& policy,
    std::vector<ModuleRule> rules = {}) {
  const sharding::ModuleChoices choices(module, std::move(rules));
  return sharding::make_groups(
      module,
      sharding::take_parameter_census(module, choices),
      policy,
      choices);
}

} // namespace tessera::tests

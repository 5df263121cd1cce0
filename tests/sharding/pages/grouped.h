// SPDX-License-Identifier: Apache-2.0
#pragma once
// `grouped()` divides a module as an engine would.

#include "tessera/sharding/pages/grouping.h"

#include <utility>
#include <vector>

namespace tessera::tests {

inline std::vector<sharding::PageSpec> grouped(
    const torch::nn::Module& module,
    const GroupPolicy& policy,
    std::vector<ModuleRule> rules = {}) {
  const sharding::ModuleChoices choices(module, std::move(rules));
  choices.check_all_match();
  return sharding::group_parameters(
      module,
      sharding::take_parameter_census(module, choices),
      policy,
      choices);
}

} // namespace tessera::tests

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `every_rule()` lists the optimizers for tests of what all of them must do.

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizer_options.h"

#include <vector>

namespace tessera::tests {

/// All of configurations, with their defaults; SGD with momentum, too. Not
/// those that exchange momentum, which take a layout of their own
/// (one_bit_optimizers_test.cpp).
inline std::vector<UpdateRule> every_rule() {
  std::vector<UpdateRule> rules;
  for (const auto* optimizer : engine::configurable_optimizers()) {
    if (!optimizer->sends_momentum()) {
      rules.push_back(optimizer->with_defaults());
    }
  }
  rules.emplace_back(SgdOptions{.momentum = 0.9});
  return rules;
}

/// Those of every_rule() that update elements alone.
inline std::vector<UpdateRule> elementwise_rules() {
  std::vector<UpdateRule> rules = every_rule();
  std::erase_if(rules, [](const UpdateRule& rule) {
    return !updates_elements_alone(rule);
  });
  return rules;
}

} // namespace tessera::tests

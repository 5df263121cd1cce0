// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizer_options.h"

#include <vector>

namespace tessera {

const std::vector<const engine::Optimizer*>& engine::configurable_optimizers() {
  static const std::vector<const Optimizer*> all{
      &optimizer_of(std::type_identity<AdamWOptions>()),
      &optimizer_of(std::type_identity<AdamOptions>()),
      &optimizer_of(std::type_identity<SgdOptions>()),
      &optimizer_of(std::type_identity<LionOptions>()),
      &optimizer_of(std::type_identity<LambOptions>()),
      &optimizer_of(std::type_identity<AdafactorOptions>()),
      &optimizer_of(std::type_identity<MuonOptions>())};
  return all;
}

const char* name_of(const UpdateRule& rule) {
  return rule.optimizer().name();
}

bool updates_elements_alone(const UpdateRule& rule) {
  return rule.optimizer().updates_elements_alone();
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizer_options.h"

#include <string>
#include <vector>

namespace tessera {

const std::vector<const engine::Optimizer*>& engine::configurable_optimizers() {
  static const std::vector<const Optimizer*> all{
      &optimizer_of(std::type_identity<AdamWOptions>()),
      &optimizer_of(std::type_identity<AdamOptions>()),
      &optimizer_of(std::type_identity<SgdOptions>()),
      &optimizer_of(std::type_identity<LionOptions>()),
      &optimizer_of(std::type_identity<AdanOptions>()),
      &optimizer_of(std::type_identity<LambOptions>()),
      &optimizer_of(std::type_identity<OneBitAdamOptions>()),
      &optimizer_of(std::type_identity<ZeroOneAdamOptions>()),
      &optimizer_of(std::type_identity<OneBitLambOptions>()),
      &optimizer_of(std::type_identity<AdafactorOptions>()),
      &optimizer_of(std::type_identity<MuonOptions>())};
  return all;
}

std::string engine::names_of_optimizers(bool (Optimizer::*has)() const) {
  std::vector<std::string> names;
  for (const Optimizer* optimizer : configurable_optimizers()) {
    if ((optimizer->*has)()) {
      names.emplace_back(optimizer->name());
    }
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

const char* name_of(const UpdateRule& rule) {
  return rule.optimizer().name();
}

bool updates_elements_alone(const UpdateRule& rule) {
  return rule.optimizer().updates_elements_alone();
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a module may say of itself and its parameters for when it is wrapped.

#include <optional>

namespace tessera {

/// A module that also derives from this is a group of its own, whatever its
/// type, and its wishes go before the engine's options. Of modules inside it,
/// the wishes do not count.
struct ResidencyHints {
  virtual ~ResidencyHints() = default;

  /// 1, 2 or 3: what is divided over the ranks (parameters and gradients whole;
  /// gradients divided; parameters divided as well). None: as the engine does.
  std::optional<int> zero_stage;

 protected:
  ResidencyHints() = default;
  ResidencyHints(const ResidencyHints&) = default;
  ResidencyHints& operator=(const ResidencyHints&) = default;
};

/// A module that also derives from this is a mere list of others, as
/// torch::nn::ModuleList is: they may be groups, it is none.
struct ModuleContainer {
  virtual ~ModuleContainer() = default;

 protected:
  ModuleContainer() = default;
  ModuleContainer(const ModuleContainer&) = default;
  ModuleContainer& operator=(const ModuleContainer&) = default;
};

} // namespace tessera

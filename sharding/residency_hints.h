// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ResidencyHints` and `ModuleContainer` are base classes with which a module
// influences how it is sharded.

#include <optional>

namespace tessera {

/// A module that also derives from this is a group of its own, whatever its
/// type, and its hints override the engine's options. Hints of modules inside
/// it are ignored.
struct ResidencyHints {
  virtual ~ResidencyHints() = default;

  /// ZeRO stage of the group: 1 (parameters and gradients whole), 2 (gradients
  /// sharded) or 3 (parameters sharded as well). If unset, the engine decides.
  std::optional<int> zero_stage;

 protected:
  ResidencyHints() = default;
  ResidencyHints(const ResidencyHints&) = default;
  ResidencyHints& operator=(const ResidencyHints&) = default;
};

/// A module that also derives from this is a mere list of modules, like
/// torch::nn::ModuleList: they may be groups, but it is not.
struct ModuleContainer {
  virtual ~ModuleContainer() = default;

 protected:
  ModuleContainer() = default;
  ModuleContainer(const ModuleContainer&) = default;
  ModuleContainer& operator=(const ModuleContainer&) = default;
};

} // namespace tessera

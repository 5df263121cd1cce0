// SPDX-License-Identifier: Apache-2.0
#pragma once
// `kind_of()` says what a module is, for the rules that follow from the types
// of modules: blocks, vocabularies, norms, options by type.

#include <torch/nn/module.h>

#include <string>

namespace tessera::sharding {

/// What the rules know of a type besides its name.
enum class ModuleRole {
  kOther,
  kContainer, ///< a mere list of modules, such as ModuleList
  kEmbedding, ///< its first parameter is [rows, features]
  kLinear, ///< its first parameter is [out, in]
};

struct ModuleKind {
  std::string type; ///< "torch::nn::LinearImpl"
  ModuleRole role = ModuleRole::kOther;
};

/// A module that stands for one of another language derives from this.
struct ForeignModule {
  virtual ~ForeignModule() = default;
  virtual ModuleKind kind() const = 0;

 protected:
  ForeignModule() = default;
  ForeignModule(const ForeignModule&) = default;
  ForeignModule& operator=(const ForeignModule&) = default;
};

/// The C++ type and its role, or what a ForeignModule says of itself.
ModuleKind kind_of(const torch::nn::Module& module);

} // namespace tessera::sharding

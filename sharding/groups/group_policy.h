// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupPolicy` determines how parameters are divided into groups;
// `ModuleContainer` is a base class of modules that are mere lists.

#include <cstdint>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Which modules are blocks, each a group, follows from their structure (see
/// group_parameters()) and from ModuleOptions. Sizes count the elements of
/// whole parameters, whichever part of them a tensor-parallel rank has, so that
/// all ranks have the same groups.
struct GroupPolicy {
  /// Smaller modules are merged until they reach this size; larger ones keep a
  /// group of their own. Does not apply to ModuleOptions::group.
  int64_t min_group_numel = 100'000;
  /// Consecutive groups are merged while their sum is at most this; 0: they are
  /// not merged.
  int64_t max_group_numel = 0;

  /// If set, embeddings, and linear layers with as many outputs as an embedding
  /// has rows, are groups of their own and are not merged, wherever they are,
  /// if their weight has at least min_group_numel elements.
  bool vocabulary_apart = false;
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

void visit_fields(runtime::OptionFields& fields, GroupPolicy& options);

/// @throws tessera::Error on values that are invalid for any module: negative
///   sizes, a maximum below the minimum, malformed expressions.
void check_group_policy(const GroupPolicy& policy);

} // namespace tessera

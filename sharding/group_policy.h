// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupPolicy` determines how parameters are divided into groups.

#include "tessera/sharding/parameter_census.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Whether groups are resharded between forward and backward.
struct ReshardRule {
  /// Regular expression that matches the whole path of a group's module or of a
  /// module that contains it; "root" matches the root group.
  std::string path;
  bool reshard_after_forward = true;
};

/// Paths are those of named_modules() and named_parameters(), such as
/// "encoder.layer.3". Expressions are ECMAScript and match a whole path. One
/// that matches nothing is an error that names the nearest paths.
struct GroupPolicy {
  /// Smaller modules are merged until they reach this size; larger ones keep a
  /// group of their own. Does not apply to what the rules below name.
  int64_t min_group_numel = 100'000;
  /// Consecutive groups are merged while their sum is at most this; 0: they are
  /// not merged.
  int64_t max_group_numel = 0;

  /// Modules that are blocks, each a group, in place of the default rule: by
  /// C++ type ("BertLayer", "tessera::BertLayerImpl"), ...
  std::vector<std::string> block_types;
  /// ... by path ("encoder\\.layer\\.\\d+"), ...
  std::vector<std::string> block_paths;
  /// ... or by predicate. A block inside a block is a group too; the outer
  /// block keeps the remaining parameters.
  ModulePredicate is_block;

  /// If set, embeddings, and linear layers with as many outputs as an embedding
  /// has rows, are groups of their own and are not merged, wherever they are,
  /// if their weight has at least min_group_numel elements.
  bool vocabulary_apart = false;

  /// Parameters, by any of their names, that are groups of their own and are
  /// not merged.
  std::vector<std::string> parameters_apart;

  /// Parameters that the engine ignores.
  IgnoredParameters ignored;

  /// The first rule that matches a group applies; groups that match none follow
  /// the residency plan of the engine.
  std::vector<ReshardRule> reshard_after_forward;
};

/// @throws tessera::Error on values that are invalid for any module: negative
///   sizes, a maximum below the minimum, malformed expressions.
void check_group_policy(const GroupPolicy& policy);

} // namespace tessera

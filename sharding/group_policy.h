// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a user may say about how parameters are divided into groups.

#include "tessera/sharding/parameter_census.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Whether groups are dropped between forward and backward.
struct ReshardRule {
  /// Regular expression over the whole path of a group's module or of a module
  /// that it is in; "root" is what no group's module holds.
  std::string path;
  bool reshard_after_forward = true;
};

/// Paths are written as named_modules() and named_parameters() give them,
/// "encoder.layer.3". Expressions are ECMAScript and match a whole path. One
/// that matches nothing is an error which names the nearest paths.
struct GroupPolicy {
  /// What is smaller is collected until it reaches this size; what is larger
  /// keeps a group of its own. Not so for what the rules below name.
  int64_t min_group_numel = 100'000;
  /// Groups that follow each other merge while their sum is at most this; 0:
  /// they do not.
  int64_t max_group_numel = 0;

  /// Modules that are blocks, a group each, in place of the default rule: by
  /// C++ type ("BertLayer", "tessera::BertLayerImpl"), ...
  std::vector<std::string> block_types;
  /// ... by path ("encoder\\.layer\\.\\d+"), ...
  std::vector<std::string> block_paths;
  /// ... or as it pleases. Blocks inside of blocks are groups too; the outer
  /// one keeps the rest.
  ModulePredicate is_block;

  /// Embeddings, and linear layers with as many outputs as an embedding has
  /// rows, are groups of their own and merge with nothing, wherever they are,
  /// if their weight has at least min_group_numel elements.
  bool vocabulary_apart = false;

  /// Parameters, by any of their names, that are groups of their own and merge
  /// with nothing.
  std::vector<std::string> parameters_apart;

  /// What the engine leaves alone.
  IgnoredParameters ignored;

  /// The first rule that matches a group decides; groups without one follow
  /// the engine's own plan.
  std::vector<ReshardRule> reshard_after_forward;
};

/// @throws tessera::Error on a value that no module could make sense of:
///   negative sizes, a maximum below the minimum, malformed expressions.
void check_group_policy(const GroupPolicy& policy);

} // namespace tessera

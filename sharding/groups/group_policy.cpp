// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/group_policy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/sharding/tensors/name_patterns.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, ReshardRule& rule) {
  fields.field(
      runtime::required("path"),
      rule.path,
      "regular expression for the whole path of a group's module or of one around it; `root`: the root group");
  fields.field(
      "reshard",
      rule.reshard_after_forward,
      "false: these groups stay unsharded until backward");
}

void visit_fields(runtime::OptionFields& fields, GroupPolicy& policy) {
  fields.field(
      "min_group_numel",
      policy.min_group_numel,
      {.min = 0},
      "smaller groups of parameters are merged; counts whole parameters, also under tensor parallelism");
  fields.field(
      "max_group_numel",
      policy.max_group_numel,
      {.min = 0},
      "neighboring groups are merged up to this size; 0: they are not");
  fields.field(
      "block_types",
      policy.block_types,
      "C++ types of modules that form a group each; by default repeated blocks");
  fields.field(
      "block_paths",
      policy.block_paths,
      "regular expressions over paths of modules that form a group each");
  fields.field(
      "vocabulary_apart",
      policy.vocabulary_apart,
      "embeddings, and linear layers as large as one, form groups of their own");
  fields.field(
      "parameters_apart",
      policy.parameters_apart,
      "names of parameters that form groups of their own");
  fields.field(
      "ignored",
      policy.ignored.paths,
      "regular expressions over paths of parameters or modules that are not sharded, averaged or trained");
  fields.objects(
      "reshard_after_forward",
      policy.reshard_after_forward,
      "which groups are resharded between forward and backward, whatever `zero_stage` says; the first rule that matches applies");
}

void check_group_policy(const GroupPolicy& policy) {
  runtime::check_fields("sharding", policy);
  TESSERA_CHECK(
      policy.max_group_numel == 0 ||
          policy.max_group_numel >= policy.min_group_numel,
      "GroupPolicy::max_group_numel is {}; it must be 0 (no merging) or at least min_group_numel, which is {}.",
      policy.max_group_numel,
      policy.min_group_numel);
  sharding::NamePatterns::of_types(
      "GroupPolicy::block_types", policy.block_types);
  sharding::NamePatterns::of_paths(
      "GroupPolicy::block_paths", policy.block_paths);
  sharding::NamePatterns::of_paths(
      "GroupPolicy::ignored.paths", policy.ignored.paths);
  for (const ReshardRule& rule : policy.reshard_after_forward) {
    sharding::NamePatterns::of_paths(
        "GroupPolicy::reshard_after_forward", {rule.path});
  }
}

} // namespace tessera

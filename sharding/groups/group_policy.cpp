// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/group_policy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensors/name_patterns.h"

namespace tessera {

void check_group_policy(const GroupPolicy& policy) {
  TESSERA_CHECK(
      policy.min_group_numel >= 0,
      "GroupPolicy::min_group_numel is {}; it must be at least 0.",
      policy.min_group_numel);
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

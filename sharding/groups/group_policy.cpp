// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/group_policy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

namespace tessera {

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
      "vocabulary_apart",
      policy.vocabulary_apart,
      "embeddings, and linear layers as large as one, form groups of their own");
}

void check_group_policy(const GroupPolicy& policy) {
  runtime::check_fields("sharding", policy);
  TESSERA_CHECK(
      policy.max_group_numel == 0 ||
          policy.max_group_numel >= policy.min_group_numel,
      "sharding.max_group_numel is {}; set it to 0 (no merging) or to at least sharding.min_group_numel, which is {}.",
      policy.max_group_numel,
      policy.min_group_numel);
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/sharding_options.h"

#include "tessera/runtime/core/option_check.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, ShardingOptions& options) {
  fields.field(
      "zero_stage",
      options.zero_stage,
      {.min = 1, .max = 3},
      "what is sharded: 1 optimizer state, 2 also gradients, 3 also parameters; with `memory.device_bytes`, as many groups stay unsharded as fit");
  fields.field(
      "shard_ranks",
      options.shard_ranks,
      {.min = 0, .max = 1 << 20},
      "hybrid sharding: this many neighboring ranks hold one replica of the model; 0: all ranks");
  fields.choice(
      "accumulation",
      options.accumulation,
      {{"reduce_each_backward", GradientAccumulation::kReduceEachBackward},
       {"keep_whole", GradientAccumulation::kKeepWhole}},
      "`keep_whole`: keep whole gradients until the step, as ZeRO stage 1 does by default");
  fields.field(
      "prefetch_depth",
      options.prefetch_depth,
      {.min = 0, .max = 64},
      "groups that are unsharded ahead of their use");
  fields.field(
      "broadcast_from_rank0",
      options.broadcast_from_rank0,
      "give all ranks rank 0's parameters and buffers at the start");
  fields.object("communication", options.communication, "");
  visit_fields(fields, options.groups);
  fields.objects(
      "modules",
      options.modules,
      "choices for some modules; of the rules that match, the first one that makes a choice applies");
}

void check(const ShardingOptions& options) {
  runtime::check_fields("sharding", options);
  check(options.communication);
  check_module_rules(options.modules);
}

} // namespace tessera

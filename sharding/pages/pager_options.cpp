// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/pager_options.h"

#include "tessera/runtime/core/option_check.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, PagerOptions& options) {
  fields.field(
      "zero_stage",
      options.zero_stage,
      {.min = 1, .max = 3},
      "what is sharded: 1 optimizer state, 2 also gradients, 3 also parameters");
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
  fields.bytes(
      "gather_bytes",
      options.gather_bytes,
      0,
      "limit for unsharded groups, in place of `zero_stage`: as many as fit stay unsharded");
  fields.field(
      "broadcast_from_rank0",
      options.broadcast_from_rank0,
      "give all ranks rank 0's parameters and buffers at the start");
  visit_fields(fields, options.groups);
}

void check(const PagerOptions& options) {
  check(options.precision);
  runtime::check_fields("sharding", options);
}

bool keeps_whole_gradients(
    const PagerOptions& options,
    std::optional<int> zero_stage) {
  const int stage = zero_stage.value_or(options.zero_stage);
  return options.accumulation.value_or(
             stage == 1 ? GradientAccumulation::kKeepWhole
                        : GradientAccumulation::kReduceEachBackward) ==
         GradientAccumulation::kKeepWhole;
}

GradientTypes gradient_types(
    const PagerOptions& options,
    int ranks,
    at::ScalarType dtype,
    std::optional<int> zero_stage) {
  const at::ScalarType shard = accumulate_dtype(options.precision, dtype);
  // What stays whole adds up in the slot, and on one rank nothing is reduced.
  const bool adds_up_in_slot =
      keeps_whole_gradients(options, zero_stage) || ranks == 1;
  return {
      adds_up_in_slot ? shard : gradient_dtype(options.precision, dtype),
      shard};
}

int64_t GradientTypes::slot_numel(
    int64_t padded_numel,
    int64_t shard_numel,
    bool stored) const {
  if (!stored || slot == shard) {
    return padded_numel;
  }
  const auto ratio = c10::elementSize(shard) / c10::elementSize(slot);
  return padded_numel + shard_numel * static_cast<int64_t>(ratio);
}

} // namespace tessera

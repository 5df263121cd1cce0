// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/pager_options.h"

namespace tessera::sharding {

void check(const PagerOptions& options) {
  tessera::check(options.precision);
  tessera::check(static_cast<const ShardingOptions&>(options));
}

bool keeps_full_gradients(
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
      keeps_full_gradients(options, zero_stage) || ranks == 1;
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

} // namespace tessera::sharding

// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pager_options.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

void check(const PagerOptions& options) {
  check(options.precision);
  TESSERA_CHECK(
      options.zero_stage >= 1 && options.zero_stage <= 3,
      "zero_stage is {}; it may be 1 (optimizer state divided over the ranks), 2 (gradients too) or 3 (parameters too).",
      options.zero_stage);
  TESSERA_CHECK(
      options.prefetch_depth >= 0,
      "prefetch_depth is {}; it must be at least 0.",
      options.prefetch_depth);
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

} // namespace tessera

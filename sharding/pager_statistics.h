// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pager has done.

#include <cstdint>

namespace tessera {

/// Counters since construction.
struct PagerStatistics {
  int64_t planned_unshards = 0; ///< issued ahead of their use
  int64_t on_demand_unshards = 0; ///< issued when an operator already waited
  int64_t reductions = 0;
  int64_t steps = 0;
};

} // namespace tessera

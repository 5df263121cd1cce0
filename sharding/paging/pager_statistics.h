// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagerStatistics` counts the operations of a pager.

#include <cstdint>

namespace tessera {

/// Counters since construction.
struct PagerStatistics {
  int64_t planned_unshards = 0; ///< issued before they were needed
  /// issued when an operator was already waiting
  int64_t on_demand_unshards = 0;
  int64_t reductions = 0;
  /// of the ranks, on which parameters have a gradient
  int64_t gradient_agreements = 0;
  int64_t steps = 0;
};

} // namespace tessera

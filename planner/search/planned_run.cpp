// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/planned_run.h"

namespace tessera::planner {

const PlannedRun* best_of(const std::vector<PlannedRun>& runs) {
  const PlannedRun* best = nullptr;
  for (const PlannedRun& run : runs) {
    if (run.fits() &&
        (best == nullptr || run.time.total() < best->time.total())) {
      best = &run;
    }
  }
  return best;
}

} // namespace tessera::planner

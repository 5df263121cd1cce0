// SPDX-License-Identifier: Apache-2.0
#include "plan/planned_run.h"

namespace tessera::tools {

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

} // namespace tessera::tools

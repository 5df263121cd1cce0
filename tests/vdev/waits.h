// SPDX-License-Identifier: Apache-2.0
#pragma once
// `waits_of()` counts how often the host waits for the virtual device.

#include "support/vdev/vdev_runtime.h"

#include <cstdint>
#include <ostream>

namespace tessera::tests::vdev {

struct Waits {
  int64_t synchronizations = 0; ///< those of pageable copies included
  int64_t pageable_copies = 0;

  bool operator==(const Waits&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Waits& waits) {
  return out << waits.synchronizations << " synchronizations and "
             << waits.pageable_copies << " pageable copies";
}

/// Those of action().
template <typename Action>
Waits waits_of(const Action& action) {
  const Counters before = Runtime::instance().counters();
  action();
  const Counters after = Runtime::instance().counters();
  return {
      after.synchronizations - before.synchronizations,
      after.pageable_copies - before.pageable_copies};
}

} // namespace tessera::tests::vdev

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateStatistics` counts optimizer updates that overlapped with backward.

#include <cstdint>

namespace tessera {

/// Counts since construction, in parts of pages.
struct UpdateStatistics {
  int64_t beside = 0; ///< overlapped with backward, and used
  int64_t speculated = 0; ///< begun before it was known whether they are used
  int64_t taken = 0; ///< speculated ones that were used
};

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `IntRange` and `DoubleRange` are the values that a field may have.

#include <cstdint>
#include <limits>

namespace tessera::runtime {

/// Both ends are included.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

/// Both ends are included unless they are open.
struct DoubleRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

} // namespace tessera::runtime

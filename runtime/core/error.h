// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one exception that Tessera throws for wrong input, wrong use and failed
// operations, and the macros that throw it.

#include "tessera/runtime/core/format.h"

#include <stdexcept>

namespace tessera {

/// What went wrong, the value that was found, and what to do about it, in one
/// message that a stranger understands.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

} // namespace tessera

/// Throws tessera::Error with formatted(format, arguments...), e.g.
/// TESSERA_FAIL("'{}' has {} rows; expected {}", name, rows, expected).
#define TESSERA_FAIL(...) \
  throw ::tessera::Error(::tessera::formatted(__VA_ARGS__))

/// TESSERA_FAIL(format, arguments...) unless `condition` holds.
#define TESSERA_CHECK(condition, ...) \
  do {                                \
    if (!(condition)) [[unlikely]] {  \
      TESSERA_FAIL(__VA_ARGS__);      \
    }                                 \
  } while (false)

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Error` is the one exception that Tessera throws for invalid input, incorrect
// use and failed operations; TESSERA_CHECK and TESSERA_FAIL throw it.

#include "tessera/runtime/core/format.h"

#include <stdexcept>

namespace tessera {

/// Its message says what went wrong, which value was found and how to fix it.
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

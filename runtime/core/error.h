// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one exception that Tessera throws for wrong input, wrong use and failed
// operations, and the macro that throws it.

#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera {

/// What went wrong, the value that was found, and what to do about it, in one
/// message that a stranger understands.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

} // namespace detail

} // namespace tessera

/// Throws tessera::Error with the concatenation of the given parts.
#define TESSERA_FAIL(...) \
  throw ::tessera::Error(::tessera::detail::concat(__VA_ARGS__))

/// Throws tessera::Error with the given parts unless `condition` holds.
#define TESSERA_CHECK(condition, ...) \
  do {                                \
    if (!(condition)) [[unlikely]] {  \
      TESSERA_FAIL(__VA_ARGS__);      \
    }                                 \
  } while (false)

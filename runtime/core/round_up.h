// SPDX-License-Identifier: Apache-2.0
#pragma once
// `round_up()` rounds to multiples.

#include <concepts>
#include <type_traits>

namespace tessera::runtime {

/// The least multiple of `multiple` that is not less than `value`, which is not
/// negative.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

} // namespace tessera::runtime

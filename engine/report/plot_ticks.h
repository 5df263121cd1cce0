// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make_ticks()` places axis ticks at round numbers.

#include <string>
#include <vector>

namespace tessera::engine {

/// Round positions on an axis and their labels.
struct Ticks {
  std::vector<double> values; ///< Ascending, inside the range asked for.
  std::vector<std::string> labels;
};

/// At most `most` ticks (2 or more) at multiples of 1, 2 or 5 times a power of
/// ten.
/// @param low, high finite, low < high.
/// @param whole whether only whole numbers are used.
Ticks make_ticks(double low, double high, int most, bool full = false);

/// `value` with this many decimals, independent of the process's locale.
std::string fixed(double value, int decimals);

/// A whole number with a comma between thousands: "12,000".
std::string grouped(double value);

} // namespace tessera::engine

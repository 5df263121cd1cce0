// SPDX-License-Identifier: Apache-2.0
#pragma once
// Axis ticks at round numbers.

#include <string>
#include <vector>

namespace tessera {

/// Round positions on an axis and the text beside each.
struct Ticks {
  std::vector<double> values; ///< Ascending, inside the range asked for.
  std::vector<std::string> labels;
};

/// At most `most` ticks (2 or more) that are multiples of 1, 2 or 5 times a
/// power of ten. `low` < `high`, both finite; `whole` keeps to whole numbers.
Ticks make_ticks(double low, double high, int most, bool whole = false);

/// A number with this many decimals, whatever the process's locale.
std::string fixed(double value, int decimals);

/// A whole number with a comma between thousands: "12,000".
std::string grouped(double value);

} // namespace tessera

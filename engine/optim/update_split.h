// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who updates the groups whose state is not on the device: the CPU, or the
// device over streamed state.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// What updates take on one rank while all others are at it too. Seconds.
struct UpdateRates {
  double cpu_element = 0; ///< the CPU's update of one element
  double device_element = 0; ///< the device's
  /// One byte on its way to the device, and from it, while both directions are
  /// busy.
  double byte_to_device = 0;
  double byte_to_host = 0;
};

/// Bytes per element that an update moves.
struct UpdateBytes {
  double gradient = 0; ///< to the host, for an update by the CPU
  double weight = 0; ///< to the device, behind it
  double state = 0; ///< in both directions, for an update by the device
};

/// What the slowest of the four (CPU, device, both directions) takes for one
/// element of which the fraction `ratio` is updated by the CPU, when all of
/// them work at the same time. Seconds.
double update_seconds(
    double ratio,
    const UpdateRates& rates,
    const UpdateBytes& bytes);

/// The ratio, 0 to 1, for which update_seconds() is least; of several the
/// largest.
double best_ratio(const UpdateRates& rates, const UpdateBytes& bytes);

/// Divides groups so that at every point the CPU has had about `ratio` of the
/// elements until then. So the two take turns, and while the CPU computes one
/// group the one before it passes through the device.
/// @param numel elements of each group. @param ratio 0 to 1, which give all
///   groups to the device, and to the CPU.
/// @return per group, whether the CPU updates it.
std::vector<bool> divide_updates(
    const std::vector<int64_t>& numel,
    double ratio);

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `best_ratio()` and `divide_updates()` divide the updates of pages whose
// state is not on the device between the CPU and the device.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::offload {

/// Seconds of an update's parts on one rank while all other parts, and other
/// ranks, are at work too.
struct UpdateRates {
  double cpu_element = 0; ///< the CPU's update of one element
  double device_element = 0; ///< the same on the device
  /// One byte to the device, and one from it, while both directions are busy.
  double byte_to_device = 0;
  double byte_to_host = 0;
};

/// Bytes per element that an update moves.
struct UpdateBytes {
  double gradient = 0; ///< to the host, for an update by the CPU
  double weight = 0; ///< to the device, after it
  double state = 0; ///< in both directions, for an update by the device
};

/// Seconds per element of the slowest of the four resources (CPU, device, both
/// directions) if the CPU updates the fraction `ratio` of the elements and all
/// of them work at the same time.
double update_seconds(
    double ratio,
    const UpdateRates& rates,
    const UpdateBytes& bytes);

/// The ratio in [0, 1] with the smallest update_seconds(); of several the
/// largest.
double best_ratio(const UpdateRates& rates, const UpdateBytes& bytes);

/// Divides pages such that at every point the CPU has had about `ratio` of the
/// elements so far. The two thereby alternate, and while the CPU computes one
/// page the previous one passes through the device.
/// @param numel elements of each page.
/// @param ratio 0 gives all pages to the device, 1 all to the CPU.
/// @return per page, whether the CPU updates it.
std::vector<bool> divide_updates(
    const std::vector<int64_t>& numel,
    double ratio);

} // namespace tessera::offload

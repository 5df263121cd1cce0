// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_split.h"

#include <algorithm>
#include <array>

namespace tessera::offload {

namespace {

/// Seconds as a function of the ratio: at_0 + ratio * slope.
struct Line {
  double at_0 = 0;
  double slope = 0;

  double at(double ratio) const {
    return at_0 + ratio * slope;
  }
};

std::array<Line, 4> lines_of(
    const UpdateRates& rates,
    const UpdateBytes& bytes) {
  const auto line = [](double at_0, double at_1) {
    return Line{at_0, at_1 - at_0};
  };
  return {
      line(0, rates.cpu_element),
      line(rates.device_element, 0),
      line(
          bytes.state * rates.byte_to_device,
          bytes.weight * rates.byte_to_device),
      line(
          bytes.state * rates.byte_to_host,
          bytes.gradient * rates.byte_to_host)};
}

} // namespace

double update_seconds(
    double ratio,
    const UpdateRates& rates,
    const UpdateBytes& bytes) {
  double most = 0;
  for (const Line& line : lines_of(rates, bytes)) {
    most = std::max(most, line.at(ratio));
  }
  return most;
}

double best_ratio(const UpdateRates& rates, const UpdateBytes& bytes) {
  // The maximum of some lines is smallest at an end, or where two of them
  // cross.
  const auto lines = lines_of(rates, bytes);
  std::vector<double> candidates{1, 0};
  for (const Line& a : lines) {
    for (const Line& b : lines) {
      const double ratio = (b.at_0 - a.at_0) / (a.slope - b.slope);
      if (ratio > 0 && ratio < 1) { // not of parallel ones
        candidates.push_back(ratio);
      }
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  return *std::min_element(
      candidates.begin(), candidates.end(), [&](double a, double b) {
        return update_seconds(a, rates, bytes) <
               update_seconds(b, rates, bytes);
      });
}

std::vector<bool> divide_updates(
    const std::vector<int64_t>& numel,
    double ratio) {
  std::vector<bool> by_cpu;
  double all = 0;
  double of_cpu = 0;
  for (const int64_t n : numel) {
    const auto size = static_cast<double>(n);
    all += size;
    // Whichever leaves the CPU's share closer to the ratio.
    const bool takes =
        ratio == 1 || (ratio > 0 && of_cpu + size / 2 < ratio * all);
    by_cpu.push_back(takes);
    of_cpu += takes ? size : 0;
  }
  return by_cpu;
}

} // namespace tessera::offload

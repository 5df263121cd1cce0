// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/plot_curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace tessera::engine {

bool is_drawable(const PlotPoint& point) {
  constexpr double kLargest = 1e100;
  return std::abs(point.x) <= kLargest && std::abs(point.y) <= kLargest;
}

std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points) {
  constexpr double kWindowFraction = 1.0 / 30;
  std::vector<PlotPoint> result;
  std::copy_if(
      points.begin(), points.end(), std::back_inserter(result), is_drawable);
  std::vector<double> sums{0}; // sums[i] is that of the first i points.
  for (const PlotPoint& point : result) {
    sums.push_back(sums.back() + point.y);
  }
  const auto half = static_cast<size_t>(
      std::ceil(kWindowFraction * static_cast<double>(result.size()) / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const size_t begin = i - std::min(i, half);
    const size_t end = std::min(i + half + 1, result.size());
    result[i].y = (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  return result;
}

std::vector<Pixel> thinned(const std::vector<Pixel>& points) {
  std::vector<Pixel> result;
  for (size_t begin = 0; begin < points.size();) {
    const double column = std::floor(points[begin].x);
    size_t end = begin + 1;
    size_t low = begin;
    size_t high = begin;
    while (end < points.size() && std::floor(points[end].x) == column) {
      low = points[end].y < points[low].y ? end : low;
      high = points[end].y > points[high].y ? end : high;
      ++end;
    }
    std::array<size_t, 4> kept{
        begin, std::min(low, high), std::max(low, high), end - 1};
    const auto kept_end = std::unique(kept.begin(), kept.end());
    for (auto it = kept.begin(); it != kept_end; ++it) {
      result.push_back(points[*it]);
    }
    begin = end;
  }
  return result;
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/operator_rates.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>

namespace tessera::planner {

namespace {

/// Calls whose work differs by less are one point.
constexpr double kAlike = 1.1;

} // namespace

bool is_matrix_product(const std::string& name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_";
}

OperatorRates::OperatorRates(const MeasuredSteps& steps)
    : kernels_(steps.kernels) {
  TESSERA_CHECK(
      steps.kernels > 0,
      "the measured rate of kernels is {} bytes/s; it has to be positive",
      steps.kernels);
  std::vector<MeasuredOperator> measured = steps.operators;
  std::stable_sort(
      measured.begin(), measured.end(), [](const auto& a, const auto& b) {
        return a.work < b.work;
      });
  for (const MeasuredOperator& each : measured) {
    TESSERA_CHECK(
        each.work > 0 && each.seconds > 0,
        "a call of {} is said to have done {} operations or bytes in {} s; both have to be positive",
        each.name,
        each.work,
        each.seconds);
    std::vector<Point>& points =
        points_[{each.name, each.dtype, each.in_backward, each.is_rounded}];
    if (points.empty() || each.work > kAlike * points.back().work) {
      points.emplace_back();
    }
    Point& point = points.back();
    point.work = (point.work * point.calls + each.work) / (point.calls + 1);
    point.seconds =
        (point.seconds * point.calls + each.seconds) / (point.calls + 1);
    ++point.calls;
  }
}

double OperatorRates::seconds_at(
    const std::vector<Point>& points,
    double work) {
  const auto above =
      std::find_if(points.begin(), points.end(), [work](const Point& point) {
        return point.work >= work;
      });
  if (above == points.begin()) {
    return points.front().seconds * work / points.front().work;
  }
  if (above == points.end()) {
    return points.back().seconds * work / points.back().work;
  }
  const Point& below = *(above - 1);
  const double share =
      std::log(work / below.work) / std::log(above->work / below.work);
  return below.seconds * std::pow(above->seconds / below.seconds, share);
}

std::optional<double> OperatorRates::seconds(
    const OperatorWork& work,
    bool is_rounded) const {
  const double all = work.flops > 0 ? work.flops : work.bytes;
  if (work.calls <= 0 || all <= 0) {
    return std::nullopt;
  }
  const auto calls = static_cast<double>(work.calls);
  for (const bool in_backward : {work.in_backward, !work.in_backward}) {
    const auto found =
        points_.find({work.name, work.dtype, in_backward, is_rounded});
    if (found != points_.end()) {
      return calls * seconds_at(found->second, all / calls);
    }
  }
  return std::nullopt;
}

} // namespace tessera::planner

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OperatorRates` says how long operators take by what calls of the same ones
// took.

#include "tessera/runtime/dry_run/work_counts.h"

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::planner {

/// Whether an operator multiplies matrices: one of those that set_cpu_matmul()
/// concerns.
/// @param name e.g. "aten::addmm".
bool is_matrix_product(const std::string& name);

/// Calls of an operator with equal work, in training steps.
struct MeasuredOperator {
  std::string name; ///< e.g. "aten::addmm"
  bool in_backward = false;
  bool is_rounded = false; ///< the factors of a product, CpuMatmul::kBfloat16
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Of a call: OperatorWork::flops, of operators without any ::bytes.
  double work = 0;
  double seconds = 0; ///< of a call
};

/// What training steps took on a device.
struct MeasuredSteps {
  std::vector<MeasuredOperator> operators;
  /// Bytes/s of the engine's kernels, with all that steps took besides
  /// operators.
  double kernels = 0;
  /// Bytes/s of all operators without products, for those that are not among
  /// them.
  double others = 0;
};

/// Each operator's seconds as a function of its work, forward and backward,
/// rounded factors and others apart, and by type: measured calls, straight
/// lines between them in logarithms, and the rates of the smallest and the
/// largest beyond.
class OperatorRates {
 public:
  /// @throws tessera::Error on rates that are not positive.
  explicit OperatorRates(const MeasuredSteps& steps);

  /// Of all calls of an operator; of one that was measured in the other
  /// direction only, by that. Nothing if none was measured.
  /// @param is_rounded MeasuredOperator::is_rounded.
  std::optional<double> seconds(
      const OperatorWork& work,
      bool is_rounded = false) const;
  /// Bytes/s, MeasuredSteps::kernels.
  double kernels() const {
    return kernels_;
  }

 private:
  struct Point {
    double work = 0;
    double seconds = 0; ///< of a call; a mean
    double calls = 0;
  };
  using Key = std::tuple<std::string, c10::ScalarType, bool, bool>;

  static double seconds_at(const std::vector<Point>& points, double work);

  std::map<Key, std::vector<Point>> points_; ///< by work
  double kernels_ = 0;
};

} // namespace tessera::planner

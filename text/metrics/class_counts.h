// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ClassCounts` adds up predictions of classes; accuracy, F1 and Matthews'
// correlation follow from it.

#include <cstdint>
#include <vector>

namespace tessera::text {

/// The values of scikit-learn's functions, over what was added here and, if
/// values() are summed over ranks, everywhere.
class ClassCounts {
 public:
  explicit ClassCounts(size_t classes) : per_class_(classes) {}

  /// The classes of an example, and those that are predicted: one each, or any
  /// number (several labels).
  /// @throws tessera::Error on a class that is not among `classes`.
  void add(
      const std::vector<int64_t>& wanted,
      const std::vector<int64_t>& predicted);

  /// The counts, for a sum over ranks.
  std::vector<double> values() const;
  void set_values(const std::vector<double>& values);

  /// The fraction of examples whose classes are all predicted and no others.
  double accuracy() const;
  /// Of one class: 2 right / (predicted + wanted); 0 if that is 0 / 0.
  double f1(size_t of_class) const;
  /// The mean over all classes, or only those that are wanted or predicted
  /// anywhere, as scikit-learn has it for one class per example.
  double f1_macro(bool all_classes) const;
  /// Of the sums over classes.
  double f1_micro() const;
  /// Correlation of wanted and predicted classes, one each (Gorodkin, 2004); 0
  /// if either side is constant.
  double matthews() const;

 private:
  struct Counts {
    double right = 0; ///< wanted and predicted
    double wanted = 0;
    double predicted = 0;
  };
  std::vector<Counts> per_class_;
  double examples_ = 0;
  double right_ = 0; ///< examples
};

} // namespace tessera::text

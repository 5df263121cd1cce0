// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LossWatch` says which losses of a run cannot be right.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace tessera::engine {

class LossWatch {
 public:
  /// @param spike a loss above this times the median of those before is bad; 0:
  ///   only one that is not finite.
  explicit LossWatch(double spike) : spike_(spike) {}

  /// Takes in the mean loss of steps [first, last].
  /// @return what is wrong with it; nothing if it is good.
  std::optional<std::string> add(double loss, int64_t first, int64_t last);

  /// Forgets the losses after `step`.
  void rewind(int64_t step);

 private:
  /// Of the losses before; nothing if they are too few.
  std::optional<double> median() const;

  double spike_;
  std::deque<std::pair<int64_t, double>> recent_; ///< last step, loss
};

} // namespace tessera::engine

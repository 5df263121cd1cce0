// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SkippedSteps` formats the warnings about skipped optimizer steps.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tessera::engine {

/// Limits how often skipped steps (overflows of scaled gradients) are reported:
/// a scale that is far too high is halved in many steps.
class SkippedSteps {
 public:
  /// @param now_s any steady clock in seconds; empty for the system's.
  explicit SkippedSteps(std::function<double()> now_s = {});

  /// @param loss_scale after the step.
  /// @return the line, or nothing if the last one is less than ten seconds old.
  std::optional<std::string> add(int64_t step, double loss_scale);

  /// How many were added.
  int64_t count() const {
    return count_;
  }
  /// @param steps of the run since it was started or resumed.
  /// @return a line about all of them; nothing if the lines of add() have told
  ///     it.
  std::optional<std::string> summary(int64_t steps, double loss_scale) const;

 private:
  std::function<double()> now_s_;
  std::optional<double> logged_s_;
  int64_t unlogged_ = 0;
  int64_t count_ = 0;
};

} // namespace tessera::engine

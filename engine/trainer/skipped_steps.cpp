// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/skipped_steps.h"

#include "tessera/runtime/core/error.h"

#include <chrono>
#include <utility>

namespace tessera::engine {

namespace {

constexpr double kIntervalS = 10;

double steady_seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

SkippedSteps::SkippedSteps(std::function<double()> now_s)
    : now_s_(now_s ? std::move(now_s) : steady_seconds) {}

std::optional<std::string> SkippedSteps::add(int64_t step, double loss_scale) {
  const double now_s = now_s_();
  ++count_;
  if (logged_s_ && now_s - *logged_s_ < kIntervalS) {
    ++unlogged_;
    return std::nullopt;
  }
  logged_s_ = now_s;
  const int64_t unlogged = std::exchange(unlogged_, 0);
  return formatted(
      "step {} skipped: gradients overflowed, loss scale now {}{}",
      step,
      loss_scale,
      unlogged == 0 ? "" : " (and " + std::to_string(unlogged) + " before it)");
}

std::optional<std::string> SkippedSteps::summary(
    int64_t steps,
    double loss_scale) const {
  return count_ < 2
             ? std::nullopt
             : std::optional(formatted(
                   "{} of {} steps were skipped, because gradients overflowed: {}; loss scale now {}",
                   count_,
                   steps,
                   count_ == steps ? "the weights are as they were"
                                   : "they changed no weight",
                   loss_scale));
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/lr_schedule.h"

#include <algorithm>

namespace tessera {

double learning_rate_at(const LrScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.peak_lr * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  if (options.decay == LrScheduleOptions::Decay::kConstant) {
    return options.peak_lr;
  }
  const int64_t left = options.total_steps - step;
  const int64_t span =
      std::max<int64_t>(1, options.total_steps - options.warmup_steps);
  return options.peak_lr *
         std::clamp(
             static_cast<double>(left) / static_cast<double>(span), 0.0, 1.0);
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate over the steps of a run.

#include <cstdint>

namespace tessera {

struct LrScheduleOptions {
  enum class Decay { kConstant, kLinear };
  double peak_lr = 1e-3;
  /// Steps over which the rate rises linearly from peak_lr / warmup_steps.
  int64_t warmup_steps = 0;
  /// After warm-up: stays, or falls linearly to zero after the last step.
  Decay decay = Decay::kLinear;
  int64_t total_steps = 1;
};

/// The rate for step 0 .. total_steps - 1.
double learning_rate_at(const LrScheduleOptions& options, int64_t step);

} // namespace tessera

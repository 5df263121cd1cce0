// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LrScheduleOptions` describes the learning rate over the steps of a run, as a
// factor of its peak. Does not use LibTorch.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// The factor after warm-up, with s = steps since the end of warm-up, n = steps
/// from there to the end of the run, and f = final_factor:
enum class LrDecay {
  kConstant, ///< 1
  kLinear, ///< 1 - (1 - f) * s / n
  kCosine, ///< f + (1 - f) * (1 + cos(pi * s / n)) / 2
  kPolynomial, ///< f + (1 - f) * (1 - s / n)^power
  /// sqrt(warmup_steps / (step + 1)), or 1 / sqrt(step + 1) without warm-up
  /// (arXiv:1706.03762).
  kNoam,
  kExponential, ///< gamma^s
  kStep, ///< gamma^floor(s / step_size)
  kMultiStep, ///< gamma^(number of milestones that the step has reached)
  /// One cycle (arXiv:1708.07120): from 1 / start_div up to 1 in the first
  /// rise_fraction of all steps and down to 1 / (start_div * final_div), both
  /// along a cosine. It has no other warm-up.
  kOneCycle,
  /// Warmup-stable-decay (arXiv:2404.06395): 1, then linearly to f over the
  /// last decay_steps.
  kWsd,
};

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kLinear;
  /// Steps over which the factor rises linearly from 1 / warmup_steps to 1.
  int64_t warmup_steps = 0;
  /// The same as a fraction of total_steps, rounded down; counts where
  /// warmup_steps is 0.
  double warmup_fraction = 0;
  /// Steps of the run; later steps have the factor of its end.
  int64_t total_steps = 1;
  /// The factor that is reached after the last step.
  double final_factor = 0;
  double power = 1; ///< for kPolynomial
  double gamma = 0.1; ///< for kExponential, kStep, kMultiStep
  int64_t step_size = 1; ///< for kStep
  std::vector<int64_t> milestones; ///< for kMultiStep, steps since the start
  double rise_fraction = 0.3; ///< for kOneCycle
  double start_div = 25; ///< for kOneCycle
  double final_div = 1e4; ///< for kOneCycle
  int64_t decay_steps = 0; ///< for kWsd
};

void visit_fields(runtime::OptionFields& fields, LrScheduleOptions& options);

/// @throws tessera::Error naming the option, its value and the allowed range.
void check(const LrScheduleOptions& options);

/// The steps of the warm-up: warmup_steps, or its fraction of total_steps.
/// kOneCycle does not use it.
int64_t warmup_steps_of(const LrScheduleOptions& options);

/// The factor of step `step`, counted from 0.
/// @param options checked.
double lr_factor_at(const LrScheduleOptions& options, int64_t step);

/// The names in configurations: "constant", "linear", ...
const std::vector<std::pair<std::string, LrDecay>>& lr_decay_names();

} // namespace tessera

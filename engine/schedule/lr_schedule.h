// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate over the steps of a run, as a factor of its peak. Without
// LibTorch.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// What the rate does after warm-up. With s steps since then, n steps from then
/// to the end, and f = final_factor:
enum class LrDecay {
  kConstant, ///< 1
  kLinear, ///< 1 - (1 - f) * s / n
  kCosine, ///< f + (1 - f) * (1 + cos(pi * s / n)) / 2
  kPolynomial, ///< f + (1 - f) * (1 - s / n)^power
  /// sqrt(warmup_steps / (step + 1)), arXiv:1706.03762; without warm-up
  /// 1 / sqrt(step + 1).
  kNoam,
  kExponential, ///< gamma^s
  kStep, ///< gamma^floor(s / step_size)
  kMultiStep, ///< gamma^(number of milestones that the step has reached)
  /// arXiv:1708.07120: from 1 / start_div up to 1 in the first rise_fraction
  /// of all steps and down to 1 / (start_div * final_div), both along cosines.
  /// It has no other warm-up.
  kOneCycle,
  /// Warm-up, stable, decay (arXiv:2404.06395): 1, and over the last
  /// decay_steps linearly to f.
  kWsd,
};

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kLinear;
  /// Over which the factor rises linearly from 1 / warmup_steps to 1.
  int64_t warmup_steps = 0;
  /// Of the run; later steps have the factor of its end.
  int64_t total_steps = 1;
  /// What is reached after the last step.
  double final_factor = 0;
  double power = 1; ///< of kPolynomial
  double gamma = 0.1; ///< of kExponential, kStep, kMultiStep
  int64_t step_size = 1; ///< of kStep
  std::vector<int64_t> milestones; ///< of kMultiStep, steps since the start
  double rise_fraction = 0.3; ///< of kOneCycle
  double start_div = 25; ///< of kOneCycle
  double final_div = 1e4; ///< of kOneCycle
  int64_t decay_steps = 0; ///< of kWsd
};

/// @throws tessera::Error naming the option, its value and what it may be.
void check(const LrScheduleOptions& options);

/// The factor for step 0, 1, ... @param options checked.
double lr_factor_at(const LrScheduleOptions& options, int64_t step);

/// The names that configurations use: "constant", "linear", ...
const std::vector<std::pair<std::string, LrDecay>>& lr_decay_names();

} // namespace tessera

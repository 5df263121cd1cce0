// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/schedule/lr_schedule.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {

namespace {

void check_range(const char* name, double value, double min, double max) {
  TESSERA_CHECK(
      value >= min && value <= max,
      "learning-rate schedule: {} is {}; it must be from {} to {}.",
      name,
      value,
      min,
      max);
}

/// From `from` to `to` along half a cosine, at 0 <= part <= 1.
double cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

double one_cycle(const LrScheduleOptions& options, int64_t step) {
  const double last = static_cast<double>(options.total_steps) - 1;
  const double top =
      options.rise_fraction * static_cast<double>(options.total_steps) - 1;
  const double at = std::min(static_cast<double>(step), last);
  const double start = 1 / options.start_div;
  if (at <= top) {
    return top > 0 ? cosine(start, 1, at / top) : 1;
  }
  const double part =
      last > top ? (at - std::max(top, 0.0)) / (last - std::max(top, 0.0)) : 1;
  return cosine(1, start / options.final_div, std::clamp(part, 0.0, 1.0));
}

} // namespace

void check(const LrScheduleOptions& options) {
  constexpr double kMany = 1e15;
  const auto check_steps = [](const char* name, int64_t steps, int64_t min) {
    check_range(
        name, static_cast<double>(steps), static_cast<double>(min), kMany);
  };
  check_steps("warmup_steps", options.warmup_steps, 0);
  check_steps("total_steps", options.total_steps, 1);
  check_range("final_factor", options.final_factor, 0, 1);
  check_range("power", options.power, 0, 100);
  check_range("gamma", options.gamma, 0, 1);
  check_steps("step_size", options.step_size, 1);
  for (const int64_t milestone : options.milestones) {
    check_steps("milestones", milestone, 0);
  }
  check_range("rise_fraction", options.rise_fraction, 0, 1);
  check_range("start_div", options.start_div, 1, kMany);
  check_range("final_div", options.final_div, 1, kMany);
  check_steps("decay_steps", options.decay_steps, 0);
}

double lr_factor_at(const LrScheduleOptions& options, int64_t step) {
  if (options.decay == LrDecay::kOneCycle) {
    return one_cycle(options, step);
  }
  if (step < options.warmup_steps) {
    return static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  const int64_t since = step - options.warmup_steps;
  const auto s = static_cast<double>(since);
  const auto n = static_cast<double>(
      std::max<int64_t>(1, options.total_steps - options.warmup_steps));
  const double part = std::min(1.0, s / n);
  const double f = options.final_factor;
  switch (options.decay) {
    case LrDecay::kConstant:
    case LrDecay::kOneCycle:
      return 1;
    case LrDecay::kLinear:
      return 1 - (1 - f) * part;
    case LrDecay::kCosine:
      return cosine(1, f, part);
    case LrDecay::kPolynomial:
      return f + (1 - f) * std::pow(1 - part, options.power);
    case LrDecay::kNoam:
      return std::sqrt(
          static_cast<double>(std::max<int64_t>(1, options.warmup_steps)) /
          static_cast<double>(step + 1));
    case LrDecay::kExponential:
      return std::pow(options.gamma, s);
    case LrDecay::kStep:
      return std::pow(
          options.gamma, static_cast<double>(since / options.step_size));
    case LrDecay::kMultiStep:
      return std::pow(
          options.gamma,
          static_cast<double>(std::count_if(
              options.milestones.begin(),
              options.milestones.end(),
              [&](int64_t milestone) { return step >= milestone; })));
    case LrDecay::kWsd: {
      const auto left =
          static_cast<double>(std::max<int64_t>(0, options.total_steps - step));
      const auto span =
          static_cast<double>(std::max<int64_t>(1, options.decay_steps));
      return f + (1 - f) * std::min(1.0, left / span);
    }
  }
  return 1;
}

const std::vector<std::pair<std::string, LrDecay>>& lr_decay_names() {
  static const std::vector<std::pair<std::string, LrDecay>> names{
      {"constant", LrDecay::kConstant},
      {"linear", LrDecay::kLinear},
      {"cosine", LrDecay::kCosine},
      {"polynomial", LrDecay::kPolynomial},
      {"noam", LrDecay::kNoam},
      {"exponential", LrDecay::kExponential},
      {"step", LrDecay::kStep},
      {"multi_step", LrDecay::kMultiStep},
      {"one_cycle", LrDecay::kOneCycle},
      {"wsd", LrDecay::kWsd}};
  return names;
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/schedule/lr_schedule.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {

namespace {

/// Whether it ends at `final_factor`.
bool has_final_factor(LrDecay decay) {
  return decay == LrDecay::kLinear || decay == LrDecay::kCosine ||
         decay == LrDecay::kPolynomial || decay == LrDecay::kWsd;
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

void visit_fields(runtime::OptionFields& fields, LrScheduleOptions& options) {
  const auto decay = fields.choice(
      "decay",
      options.decay,
      lr_decay_names(),
      "the learning rate after warm-up; see `engine/schedule/lr_schedule.h`");
  fields.field(
      "warmup_steps",
      options.warmup_steps,
      {.min = 0},
      "optimizer steps over which the learning rate rises; 0: see `warmup_fraction`");
  fields.field(
      "warmup_fraction",
      options.warmup_fraction,
      {.min = 0, .max = 1},
      "the same as a fraction of the run's steps, rounded down. 0 by default, if `warmup_steps` is set or `decay` is not linear, cosine, polynomial or wsd; not for one_cycle");
  fields.field(
      "final_factor",
      options.final_factor,
      {.min = 0, .max = 1},
      "fraction of the peak learning rate that remains at the end, of linear, cosine, polynomial and wsd");
  fields.when(decay, {"polynomial"}, [&] {
    fields.field("power", options.power, {.min = 0, .max = 100}, "exponent");
  });
  fields.when(decay, {"exponential", "step", "multi_step"}, [&] {
    fields.field(
        "gamma", options.gamma, {.min = 0, .max = 1}, "factor of each decay");
  });
  fields.when(decay, {"step"}, [&] {
    fields.field(
        runtime::required("step_size"),
        options.step_size,
        {.min = 1},
        "optimizer steps between decays");
  });
  fields.when(decay, {"multi_step"}, [&] {
    fields.field(
        runtime::required("milestones"),
        options.milestones,
        {.min = 0},
        "optimizer steps of the decays");
  });
  fields.when(decay, {"wsd"}, [&] {
    fields.field(
        runtime::required("decay_steps"),
        options.decay_steps,
        {.min = 1},
        "last optimizer steps, in which the learning rate falls");
  });
  fields.when(decay, {"one_cycle"}, [&] {
    fields.field(
        "rise_fraction",
        options.rise_fraction,
        {.min = 0, .max = 1},
        "fraction of all steps in which the learning rate rises");
    fields.field(
        "start_div",
        options.start_div,
        {.min = 1},
        "the first learning rate is the peak divided by this");
    fields.field(
        "final_div",
        options.final_div,
        {.min = 1},
        "the last learning rate is the first divided by this");
  });
}

void check(const LrScheduleOptions& options) {
  runtime::check_fields("schedule", options);
  TESSERA_CHECK(
      options.total_steps >= 1,
      "learning-rate schedule: total_steps is {}; it must be at least 1.",
      options.total_steps);
  TESSERA_CHECK(
      options.warmup_steps == 0 || options.warmup_fraction == 0,
      "schedule.warmup_fraction is {}, but schedule.warmup_steps is {}; set one of them.",
      options.warmup_fraction,
      options.warmup_steps);
  const auto& names = lr_decay_names();
  const auto name =
      std::find_if(names.begin(), names.end(), [&](const auto& each) {
        return each.second == options.decay;
      });
  TESSERA_CHECK(
      options.final_factor == 0 || has_final_factor(options.decay),
      "schedule.final_factor is {}, which only linear, cosine, polynomial and wsd end at; remove it, because schedule.decay is {}",
      options.final_factor,
      name->first);
  TESSERA_CHECK(
      options.decay != LrDecay::kOneCycle ||
          (options.warmup_steps == 0 && options.warmup_fraction == 0),
      "schedule.{} is {}, but schedule.decay is one_cycle, which rises by itself: set schedule.rise_fraction and schedule.start_div, and remove it",
      options.warmup_steps > 0 ? "warmup_steps" : "warmup_fraction",
      options.warmup_steps > 0 ? static_cast<double>(options.warmup_steps)
                               : options.warmup_fraction);
}

int64_t warmup_steps_of(const LrScheduleOptions& options) {
  return options.warmup_steps > 0
             ? options.warmup_steps
             : static_cast<int64_t>(std::floor(
                   options.warmup_fraction *
                   static_cast<double>(options.total_steps)));
}

double lr_factor_at(const LrScheduleOptions& options, int64_t step) {
  if (options.decay == LrDecay::kOneCycle) {
    return one_cycle(options, step);
  }
  const int64_t warmup = warmup_steps_of(options);
  if (step < warmup) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  const int64_t since = step - warmup;
  const auto s = static_cast<double>(since);
  const auto n =
      static_cast<double>(std::max<int64_t>(1, options.total_steps - warmup));
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
          static_cast<double>(std::max<int64_t>(1, warmup)) /
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

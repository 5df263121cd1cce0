// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/loss_scaler.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

#include <algorithm>

namespace tessera {

void visit_fields(runtime::OptionFields& fields, LossScaleOptions& options) {
  constexpr runtime::DoubleRange kPositive{.min = 0, .open_min = true};
  fields.field(
      "fixed",
      options.fixed,
      kPositive,
      "fixed loss scale, instead of the dynamic one of float16; 1: none");
  fields.field(
      "initial", options.initial, kPositive, "first dynamic loss scale");
  fields.field(
      "growth_factor",
      options.growth_factor,
      {.min = 1},
      "factor after `growth_interval` steps without overflow");
  fields.field(
      "backoff_factor",
      options.backoff_factor,
      {.min = 0, .max = 1, .open_min = true, .open_max = true},
      "factor after an overflow");
  fields.field(
      "growth_interval",
      options.growth_interval,
      {.min = 1},
      "steps without overflow after which the scale grows");
  fields.field(
      "minimum", options.minimum, kPositive, "least dynamic loss scale");
}

void check(const LossScaleOptions& options) {
  runtime::check_fields("loss_scale", options);
}

LossScaler::LossScaler(const LossScaleOptions& options, bool low_range)
    : options_(options),
      active_(options.fixed ? *options.fixed != 1 : low_range),
      scale_(active_ ? options.fixed.value_or(options.initial) : 1) {}

void LossScaler::update(bool overflow) {
  if (overflow) {
    ++skipped_steps_;
    good_steps_ = 0;
    if (options_.fixed) {
      return;
    }
    TESSERA_CHECK(
        scale_ > options_.minimum,
        "the gradients overflow even at the smallest loss scale, {}: the loss or the gradients are not finite. Lower the learning rate, keep more modules in float32 (float32 in sharding.modules), or train in bfloat16.",
        options_.minimum);
    scale_ = std::max(scale_ * options_.backoff_factor, options_.minimum);
    return;
  }
  // What is not scaled stays so, however long it goes well.
  if (active_ && !options_.fixed && ++good_steps_ == options_.growth_interval) {
    good_steps_ = 0;
    scale_ *= options_.growth_factor;
  }
}

void LossScaler::limit_for_float16_loss() {
  if (scale_ <= kLargestFloat16Scale) {
    return;
  }
  TESSERA_CHECK(
      !options_.fixed,
      "loss_scale.fixed is {}, but the loss is float16, whose gradient can be at most {}. Compute the loss in float32 (convert its inputs) or lower loss_scale.fixed.",
      scale_,
      kLargestFloat16Scale);
  scale_ = kLargestFloat16Scale;
}

void LossScaler::restore(const State& state) {
  scale_ = active_ ? state.scale : 1; // the run that was saved may have scaled
  good_steps_ = state.good_steps;
  skipped_steps_ = state.skipped_steps;
}

} // namespace tessera

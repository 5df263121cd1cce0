// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/loss_scaler.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>

namespace tessera {

void check(const LossScaleOptions& options) {
  const auto positive = [](const char* name, double value) {
    TESSERA_CHECK(
        value > 0 && std::isfinite(value),
        "loss_scale.{} is {}; it must be above 0.",
        name,
        value);
  };
  positive("fixed", options.fixed.value_or(1));
  positive("initial", options.initial);
  positive("minimum", options.minimum);
  TESSERA_CHECK(
      options.growth_factor >= 1,
      "loss_scale.growth_factor is {}; it must be at least 1.",
      options.growth_factor);
  TESSERA_CHECK(
      options.backoff_factor > 0 && options.backoff_factor < 1,
      "loss_scale.backoff_factor is {}; it must be above 0 and below 1.",
      options.backoff_factor);
  TESSERA_CHECK(
      options.growth_interval >= 1,
      "loss_scale.growth_interval is {}; it must be at least 1.",
      options.growth_interval);
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
        "the gradients overflow even at the smallest loss scale, {}: the loss or the gradients are not finite. Lower the learning rate, keep more modules in float32 (precision.float32_modules), or train in bfloat16.",
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

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fields that optimizers of the Adam family share, and what follows from them.

#include "tessera/engine/optim/update_method.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/kernels/update_rules.h"

namespace tessera::engine {

inline constexpr runtime::DoubleRange kBetaRange{
    .min = 0,
    .max = 1,
    .open_max = true};

template <typename Options>
void visit_betas(runtime::OptionFields& fields, Options& options) {
  fields.pair(
      "betas",
      options.beta1,
      options.beta2,
      kBetaRange,
      "decay rates of the moments");
}

template <typename Options>
void visit_eps(runtime::OptionFields& fields, Options& options) {
  fields.field(
      "eps",
      options.eps,
      {.min = 0, .open_min = true},
      "added to the root of the second moment");
}

template <typename Options>
void visit_adam_fields(runtime::OptionFields& fields, Options& options) {
  visit_betas(fields, options);
  visit_eps(fields, options);
}

/// AdamW, with decoupled weight decay, as parameter_step() takes it.
template <typename Options>
runtime::AdamWStep adamw_step(const Options& options) {
  runtime::AdamWStep step;
  step.beta1 = options.beta1;
  step.beta2 = options.beta2;
  step.eps = options.eps;
  return step;
}

} // namespace tessera::engine

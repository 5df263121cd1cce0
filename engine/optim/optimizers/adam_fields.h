// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fields that optimizers of the Adam family share.

#include "tessera/runtime/core/option_fields.h"

namespace tessera::engine {

template <typename Options>
void visit_betas(runtime::OptionFields& fields, Options& options) {
  fields.pair(
      "betas",
      options.beta1,
      options.beta2,
      {.min = 0, .max = 1, .open_max = true},
      "decay rates of the moments");
}

template <typename Options>
void visit_adam_fields(runtime::OptionFields& fields, Options& options) {
  visit_betas(fields, options);
  fields.field(
      "eps",
      options.eps,
      {.min = 0, .open_min = true},
      "added to the root of the second moment");
}

} // namespace tessera::engine

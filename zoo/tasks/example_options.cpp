// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/example_options.h"

#include "tessera/runtime/core/option_fields.h"

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, PixelOptions& options) {
  fields.field(
      "scale",
      options.scale,
      {},
      "the model gets (pixel * scale - mean) / std, as in preprocessor_config.json; by default 1/255 for bytes, else 1");
  fields.field(
      "mean",
      options.mean,
      {},
      "per channel, or one for all; by default 0. ViT uses `[0.5, 0.5, 0.5]`");
  fields.field(
      "std",
      options.std,
      {.min = 0, .open_min = true},
      "per channel, or one for all; by default 1. ViT uses `[0.5, 0.5, 0.5]`");
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/lora_options.h"

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, LoraOptions& options) {
  visit_fields(fields, options.adapter);
  fields.field(
      "merge",
      options.merge,
      "also export `model/`, with the adapter merged into it");
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_config.h"

#include "tessera/runtime/core/option_reader.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, EngineOptions& options) {
  fields.object("optimizer", options.optimizer, "");
  fields.object("sharding", options.sharding, "");
  fields.object("precision", options.precision, "");
  fields.object("loss_scale", options.loss_scale, "");
  fields.object("memory", options.memory, "");
  fields.object("placement", options.placement, "");
  fields.object("offload", options.offload, "");
  fields.field(
      "update_in_backward",
      options.update_in_backward,
      "update each group as soon as its gradients are final, so that they need no memory of their own; requires AdamW, Adam, SGD or Lion, no clipping and no loss scaling");
  fields.field(
      "log_memory",
      options.log_memory,
      "log the memory table before the first step");
}

EngineOptions read_engine_options(const runtime::ConfigReader& reader) {
  EngineOptions options;
  runtime::read_fields(reader, options);
  return options;
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_config.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/config.h"

#include <string>

namespace tessera {

void visit_fields(runtime::OptionFields& fields, EngineOptions& options) {
  fields.object("optimizer", options.optimizer, "");
  fields.object("sharding", options.sharding, "");
  fields.object("precision", options.precision, "");
  fields.object("loss_scale", options.loss_scale, "");
  fields.choice(
      "on_nonfinite",
      options.on_nonfinite,
      {{"stop", OnNonfinite::kStop},
       {"skip", OnNonfinite::kSkip},
       {"apply", OnNonfinite::kApply}},
      "when a gradient is NaN or infinite on some rank, without loss scaling, which skips such steps: `stop` with an error that names the parameter, before the weights change; `skip` the step with a warning; `apply` it. `stop` does not wait for an accelerator: unless gradients are clipped and updates are on the host, the loss tells at the next line of the log, and no checkpoint is saved if gradients are clipped; `skip` waits in every step. Not with `update_in_backward` and optimizers that exchange momentum");
  fields.object("memory", options.memory, "");
  fields.object("placement", options.placement, "");
  fields.object("offload", options.offload, "");
  static const std::string update_in_backward =
      "update each group as soon as its gradients are final, so that they need no memory of their own; requires " +
      engine::names_of_optimizers(&engine::Optimizer::updates_elements_alone) +
      ", no clipping and no loss scaling";
  fields.field(
      "update_in_backward",
      options.update_in_backward,
      update_in_backward.c_str());
  fields.field(
      "recompute_operators",
      options.recompute_operators,
      "results of cheap operators of any module (GELU, SiLU, products, on the CPU dropout) are computed again in backward instead of being kept; the same bits");
  fields.field(
      "save_in_background",
      options.save_in_background,
      "checkpoints are written while training continues, from a copy of the state in host memory, which the memory table has as `snapshot`; the last one is waited for");
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

// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/options/offload_options.h"

#include "tessera/runtime/core/option_check.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, OffloadOptions& options) {
  fields.bytes(
      "min_tensor_bytes",
      options.min_tensor_bytes,
      0,
      "smaller tensors stay on the device, and count in the budget");
  fields.bytes(
      "prefetch_bytes",
      options.prefetch_bytes,
      0,
      "maximum amount that is brought back ahead of its use in backward");
  fields.bytes(
      "activation_host_bytes",
      options.activation_host_bytes,
      1,
      "limit of host memory for activations, by default the rest of `memory.host_bytes`; what does not fit stays on the device");
  fields.field(
      "ratio",
      options.ratio,
      {.min = 0, .max = 1},
      "fraction (in elements) of the offloaded optimizer state that is updated on the CPU; the rest is streamed through the device. `auto`: measured at the start; see [docs/offload.md](../docs/offload.md#where-updates-run)",
      "auto");
  fields.bytes(
      "stage_bytes",
      options.stage_bytes,
      OffloadOptions::kMinStageBytes,
      "maximum device memory for the staging buffers of streamed state");
}

void check(const OffloadOptions& options) {
  runtime::check_fields("offload", options);
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/offload_options.h"

#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/core/error.h"

namespace tessera {

void check(const OffloadOptions& options, int64_t activation_bytes) {
  TESSERA_CHECK(
      options.activations != OffloadActivations::kAuto || activation_bytes > 0,
      "offload.activations is 'auto', but memory.activation_bytes, its budget, is 0. Set memory.activation_bytes, or offload.activations to 'all' or 'off'.");
  const double ratio = options.ratio.value_or(1);
  // NaN fails both comparisons.
  TESSERA_CHECK(
      ratio >= 0 && ratio <= 1,
      "offload.ratio is {}; set it to the fraction (0 to 1) of the offloaded optimizer state that the CPU updates, or leave it unset (auto) to have it measured.",
      ratio);
  TESSERA_CHECK(
      options.stage_bytes >= engine::StreamedUpdate::kMinBytes,
      "offload.stage_bytes is {}; it must be at least {}.",
      options.stage_bytes,
      engine::StreamedUpdate::kMinBytes);
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_rates()` measures how fast this machine updates on the CPU and on a
// device.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_split.h"
#include "tessera/offload/host_memory.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace tessera::engine {

/// The properties of a typical update.
struct UpdateSample {
  UpdateRule rule = AdamWOptions{}; ///< one that updates each element alone
  at::ScalarType master = at::kFloat; ///< or double
  at::ScalarType gradient = at::kFloat;
  at::ScalarType moment = at::kFloat;
  /// The dtype of the rounded weights; nothing: weights are not rounded.
  std::optional<at::ScalarType> low_precision;

  int moments() const; ///< per element
};

/// Seconds per element of the fastest of several updates of `numel` elements.
/// Blocks, on a device too.
double measure_update(
    const UpdateSample& sample,
    c10::Device device,
    int64_t numel);

/// All rates, from updates and copies of at most `numel` elements. Takes a
/// fraction of a second and, during that, up to 300 MiB on the host and 130 MiB
/// on the device that the ledger does not count.
/// @param memory for the host's side of copies.
/// @param numel above 0.
UpdateRates measure_rates(
    const UpdateSample& sample,
    offload::HostMemory& memory,
    c10::Device device,
    int64_t numel);

} // namespace tessera::engine

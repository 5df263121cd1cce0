// SPDX-License-Identifier: Apache-2.0
#pragma once
// How fast this machine updates, on the CPU and on a device.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_split.h"
#include "tessera/offload/host_memory.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// What a typical update is made of.
struct UpdateSample {
  UpdateRule rule; ///< one that updates each element alone
  at::ScalarType master = at::kFloat; ///< or double
  at::ScalarType gradient = at::kFloat;
  at::ScalarType moment = at::kFloat;
  /// Of the rounded weights; none: there is nothing to round.
  std::optional<at::ScalarType> low_precision;
};

/// Seconds per element of the fastest of a few updates of `numel` elements.
/// Blocks, on a device too.
double measure_update(
    const UpdateSample& sample,
    c10::Device device,
    int64_t numel);

/// All rates, from updates and copies of at most `numel` elements. Takes a
/// fraction of a second, and for that long up to 300 MiB of the host and 130
/// of the device, beside what the ledger counts.
/// @param memory for the host's side of copies. @param numel above 0.
UpdateRates measure_rates(
    const UpdateSample& sample,
    HostMemory& memory,
    c10::Device device,
    int64_t numel);

} // namespace tessera

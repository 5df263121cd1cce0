// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_rates()` measures how fast this machine updates on the CPU and on a
// device.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/offload/updates/update_split.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace tessera::offload {

/// The properties of a typical update, of each element alone.
struct UpdateSample {
  UpdateTypes types;
  int moments = 0; ///< per element
  std::function<void(const runtime::UpdateTensors&)> update;
};

/// All rates, from updates and copies of at most `numel` elements. Those of the
/// CPU and of copies are measured together, because both use the bandwidth of
/// host memory; the device's, which has more than copies take of it, alone.
/// Takes a fraction of a second and, during that, up to 400 MiB on the host and
/// 130 MiB on the device that the ledger does not count. Blocks.
/// @param memory for the host's side of copies.
/// @param numel above 0.
UpdateRates measure_rates(
    const UpdateSample& sample,
    HostMemory& memory,
    c10::Device device,
    int64_t numel);

} // namespace tessera::offload

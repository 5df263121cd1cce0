// SPDX-License-Identifier: Apache-2.0
#pragma once
// `device_budget_error()` explains what to do about a device budget that is too
// small.

#include "tessera/offload/options/memory_budget.h"
#include "tessera/offload/options/offload_options.h"
#include "tessera/offload/options/placement_options.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <cstdint>
#include <string>

namespace tessera::engine {

/// The text of the error: what is needed and what is set, in MiB and bytes, the
/// remedies that remain with these options, and the memory table.
/// @param memory device_bytes must be set.
/// @param planned bytes on each tier, without activations.
/// @param first_step bytes on the device that only the first step needs.
std::string device_budget_error(
    const MemoryBudget& memory,
    const PlacementOptions& placement,
    const OffloadOptions& offload,
    const TierBytes& planned,
    int64_t first_step);

} // namespace tessera::engine

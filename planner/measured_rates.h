// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measured_rates()` reads the rates of a plan from what `tessera bench`
// measured.

#include "tessera/planner/device_rates.h"

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

namespace tessera::planner {

/// Rates from the JSON of `tessera bench --json` or `tessera bench comm
/// --output`; what it does not measure stays as in `rates`.
/// @param device of the plan: rates of operators on the CPU are for kCPU.
DeviceRates measured_rates(
    const nlohmann::json& bench,
    c10::DeviceType device,
    DeviceRates rates);

} // namespace tessera::planner

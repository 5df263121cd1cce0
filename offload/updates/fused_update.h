// SPDX-License-Identifier: Apache-2.0
#pragma once
// `fused_update()` makes an update of one fused kernel, for optimizers that
// update every element independently.

#include "tessera/offload/updates/state_access.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::offload {

/// Returns StateUpdate::run, which updates the tensors where they are, or
/// streams them through the device where the site does (UpdateSite::streams()).
/// @param state of the page; must outlive the result.
/// @param steps of each span.
/// @param grad_factor as UpdateTensors::grad_factor, of all of them.
UpdateFunction fused_update(
    const StateAccess& state,
    std::vector<SpanUpdate> spans,
    std::vector<runtime::UpdateStep> steps,
    at::Tensor grad_factor);

} // namespace tessera::offload

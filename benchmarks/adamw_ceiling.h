// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least that an AdamW step must do: move its bytes.

#include <cstdint>

namespace tessera {

/// Reads four arrays and writes three of them, 28 bytes an element, as AdamW
/// does, with arithmetic that costs next to nothing. Values near one stay near
/// one.
void adamw_ceiling(
    float* master,
    const float* grad,
    float* exp_avg,
    float* exp_avg_sq,
    int64_t numel);

} // namespace tessera

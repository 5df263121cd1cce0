// SPDX-License-Identifier: Apache-2.0
#pragma once
// A parameter that the first and the last stage share, such as an embedding
// that is the head as well.

#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// Each of the two stages has a copy; all others have none, and their calls do
/// nothing. With one stage there is one tensor, used twice, and nothing to do
/// either. Both functions block, between steps only: the first and the last
/// stage must not be in the middle of a pipeline step.

/// Before training: the last stage takes over the first one's values.
/// @param parameter contiguous.
void copy_tied_parameter(const at::Tensor& parameter, RingChannels& stages);

/// After each step: the gradient of both copies becomes their sum, the same
/// bits on both, so that equal updates keep the copies equal. A missing one
/// counts as zero.
void sum_tied_gradients(const at::Tensor& parameter, RingChannels& stages);

} // namespace tessera

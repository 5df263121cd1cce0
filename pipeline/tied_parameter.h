// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions for a parameter that the first and the last pipeline stage share,
// such as an embedding that is also the head.

#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// Each of the two pipeline stages has a copy; on the others the functions do
/// nothing. With one pipeline stage there is one tensor, used twice, and they
/// do nothing either. Both functions block. Call them between steps only: the
/// first and the last pipeline stage must not be inside a pipeline step.

/// Before training: copies the values of the first pipeline stage to the last
/// one.
/// @param parameter contiguous.
void copy_tied_parameter(const at::Tensor& parameter, RingChannels& stages);

/// After each step: sets the gradients of both copies to their sum, with the
/// same bits on both, so that equal updates keep the copies equal. A missing
/// gradient counts as zero.
void sum_tied_gradients(const at::Tensor& parameter, RingChannels& stages);

} // namespace tessera

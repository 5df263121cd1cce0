// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sums that norms are made of.

#include <ATen/core/Tensor.h>

namespace tessera {

/// sum |x|^p over a flat tensor, or max |x| for p = infinity; NaN when an
/// element is NaN, infinity when one is infinite. On CPU the addition is in
/// float64, in an order that depends on the length alone, not on the number of
/// threads. Blocks.
/// @param values [numel] floating point, contiguous.
/// @param p above 0.
double power_sum(const at::Tensor& values, double p);

} // namespace tessera

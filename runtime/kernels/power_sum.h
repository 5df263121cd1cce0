// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sums that norms are made of.

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// sum |x|^p over a flat tensor, or max |x| for p = infinity; NaN when an
/// element is NaN, infinity when one is infinite. On CPU the addition is in
/// float64, in an order that depends on the length alone, not on the number of
/// threads. Blocks.
///
/// One pass thus tells both norm and overflow: for float32, bfloat16 and
/// float16 and p of 1, 2 or infinity the sum is finite if and only if all
/// elements are (float64 holds the square of every float32, and the sum of as
/// many as fit into memory).
/// @param values [numel] floating point, contiguous.
/// @param p above 0.
double power_sum(const at::Tensor& values, double p);

/// power_sum() of each of many tensors of one device. On CUDA some launches for
/// all of them, in float32 (float64 where one of them is), and one wait for the
/// device at the end.
std::vector<double> power_sums(const std::vector<at::Tensor>& runs, double p);

} // namespace tessera

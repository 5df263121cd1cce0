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

/// power_sum() of each of many tensors of one device, which on CUDA may still
/// have to be computed: in float32, or float64 where one of them is.
class PowerSums {
 public:
  PowerSums() = default;
  /// On CPU it blocks. On CUDA some launches for all runs, on the current
  /// stream; whoever calls wait() has a stream that comes after it.
  PowerSums(const std::vector<at::Tensor>& runs, double p);

  /// The sums of all of `pending`, one after the other. On CUDA one wait for
  /// the device.
  static std::vector<std::vector<double>> wait(
      const std::vector<const PowerSums*>& pending);

 private:
  double p_ = 2;
  std::vector<double> sums_; ///< of runs on the CPU
  at::Tensor norms_; ///< of the others: [places_.size()]
  std::vector<size_t> places_;
};

/// As above, at once.
std::vector<double> power_sums(const std::vector<at::Tensor>& runs, double p);

} // namespace tessera

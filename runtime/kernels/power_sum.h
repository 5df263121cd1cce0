// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PowerSums` computes the sums from which norms are made.

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::runtime {

/// For each of many tensors of one device, sum |x|^p, or max |x| for p =
/// infinity; NaN if an element is NaN, infinity if one is infinite. On CPU it
/// adds in float64, in an order that depends on the length alone, not on the
/// number of threads; on CUDA in float32, or float64 if a tensor is float64,
/// asynchronously.
///
/// One pass thus gives the norm and detects overflow: for float32, bfloat16 and
/// float16 with p = 1, 2 or infinity, a sum on the CPU is finite if and only if
/// all elements are (float64 can hold the square of every float32, and the sum
/// of as many as fit in memory).
class PowerSums {
 public:
  PowerSums() = default;
  /// @param segments flat, contiguous, floating point.
  /// @param p greater than 0.
  /// On CPU it blocks. On CUDA it issues a few launches for all runs to the
  /// current stream; wait() must be called on a stream that runs after them.
  PowerSums(const std::vector<at::Tensor>& segments, double p);

  /// Returns the sums of all of `pending`, in order. On CUDA it waits for the
  /// device once.
  static std::vector<std::vector<double>> wait(
      const std::vector<const PowerSums*>& pending);

  /// The p-norms of the runs that are not on the CPU and not empty, as they are
  /// computed: [n] float64, undefined if there are none.
  const at::Tensor& norms_on_device() const {
    return norms_;
  }

 private:
  double p_ = 2;
  std::vector<double> sums_; ///< of runs on the CPU
  at::Tensor norms_; ///< of the other runs: [places_.size()]
  std::vector<size_t> positions_;
};

} // namespace tessera::runtime
